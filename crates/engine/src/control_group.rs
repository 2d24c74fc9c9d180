//! Limits on memory of the control groups that this process is in, of either version: the most that each may use, and how
//! much of that is free.
//!
//! Linux alone has them; elsewhere there is nothing to read and no limit. Must not decide what is done with what is free.

use std::path::{Path, PathBuf};

/// What the control groups around this process leave it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GroupMemory {
    /// The lowest limit of all of them; `None` where none has any.
    pub(crate) limit_bytes: Option<u64>,
    /// The least that is free in any of them, with what the system can take back from its page cache.
    pub(crate) free_bytes: Option<u64>,
}

/// Names of one version's files.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the page cache that has not been used lately, of the group and those within it.
    inactive: &'static str,
}

const V1: Names =
    Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inactive: "total_inactive_file" };

const V2: Names = Names { limit: "memory.max", used: "memory.current", inactive: "inactive_file" };

impl GroupMemory {
    /// Looks at this process' groups. Limits of `most` bytes or more are none: the first version gives a number that no
    /// machine has.
    pub(crate) fn look(most: Option<u64>) -> Self {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::of(&own, Path::new("/sys/fs/cgroup"), most)
    }

    /// Of the groups that `own` names, as `/proc/self/cgroup` does, below `root`.
    fn of(own: &str, root: &Path, most: Option<u64>) -> Self {
        let mut found = Self::default();
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (root, names) = match controllers {
                "" => (root.to_owned(), V2),
                c if c.split(',').any(|c| c == "memory") => (root.join("memory"), V1),
                _ => continue,
            };
            // A limit of any group around ours holds as well. In a container, ours may be at the root.
            for group in Path::new(path).ancestors() {
                let group = root.join(group.strip_prefix("/").unwrap_or(group));
                let Some(limit) = bytes(group.join(names.limit)) else { continue };
                if most.is_some_and(|most| limit >= most) {
                    continue;
                }
                let lower = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
                found.limit_bytes = lower(found.limit_bytes, limit);
                found.free_bytes = lower(found.free_bytes, free(&group, &names, limit));
            }
        }
        found
    }
}

/// What is left of `limit` in the group, page cache that can be taken back included.
fn free(group: &Path, names: &Names, limit: u64) -> u64 {
    let used = bytes(group.join(names.used)).unwrap_or(0);
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|l| l.strip_prefix(names.inactive)?.trim().parse::<u64>().ok());
    limit.saturating_sub(used.saturating_sub(inactive.unwrap_or(0)))
}

/// The number in a file; `None` where it says `max` or is not there.
fn bytes(file: PathBuf) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, names: &Names, limit: &str, used: u64, inactive: u64) {
        let folder = root.join(path);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(names.limit), format!("{limit}\n")).unwrap();
        std::fs::write(folder.join(names.used), format!("{used}\n")).unwrap();
        let stat = format!("cache 1\ninactive_file_x 7\n{} {inactive}\nslab 5\n", names.inactive);
        std::fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn every_level_counts_and_so_does_what_others_use() {
        for (names, root, own) in
            [(V2, "", "0::/a/b/c"), (V1, "memory", "5:cpu:/x\n4:cpuset,memory:/a/b/c\n0::/none")]
        {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join(root);
            group(&at, "a", &names, "1000", 900, 200);
            group(&at, "a/b", &names, "800", 300, 100);
            group(&at, "a/b/c", &names, if root.is_empty() { "max" } else { "9223372036854771712" }, 300, 0);
            let look = |own| GroupMemory::of(own, dir.path(), Some(1 << 40));
            // The lowest limit is the middle one's; the outer one has least to give: 1000 - (900 - 200).
            assert_eq!(look(own), GroupMemory { limit_bytes: Some(800), free_bytes: Some(300) });
            let inner = own.replace("/a/b/c", "/d");
            assert_eq!(look(&inner), GroupMemory::default());
            // More is in use than there may be.
            group(&at, "a", &names, "1000", 1200, 0);
            assert_eq!(look(own).free_bytes, Some(0));
        }
        for broken in ["", ":", "4:memory", "0::", "::::\n\n0::/../../x"] {
            assert_eq!(GroupMemory::of(broken, Path::new("/nonexistent"), None), GroupMemory::default());
        }
    }
}
