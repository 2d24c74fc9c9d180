//! Direct and buffered reads, checked reads, the dense image, and files that change while they are open.
#![cfg(unix)]

use std::fs::OpenOptions as FileOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use spinetail_container::{Container, OpenOptions};
use spinetail_core::{DenseSource, ExpertId, Part, ReadError, ReadMode, RecordSource};

use crate::common::{ids, plan, record_bytes, written};

/// Memory at a multiple of 4096, somewhere in `memory`.
fn aligned(memory: &mut [u8]) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(4096);
    &mut memory[start..]
}

fn flip(path: &Path, at: u64) {
    let file = FileOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn options() -> impl Iterator<Item = OpenOptions> {
    ReadMode::ALL
        .into_iter()
        .flat_map(|read_mode| [false, true].map(|verify_reads| OpenOptions { read_mode, verify_reads }))
}

#[test]
fn records_are_the_same_in_every_mode_and_from_several_threads() {
    let (_dir, path) = written();
    let plan = plan();
    for options in options() {
        let c = Container::open_with(&path, &options).unwrap();
        if options.read_mode == ReadMode::Buffered {
            assert_eq!(c.read_mode(), ReadMode::Buffered);
        }
        std::thread::scope(|s| {
            for thread in 0..4 {
                let (c, ids) = (&c, ids(&plan));
                s.spawn(move || {
                    let mut memory = vec![0xff; 1 << 17];
                    let memory = aligned(&mut memory);
                    for id in ids.iter().cycle().skip(thread).take(3 * ids.len()) {
                        let file = &c.record_files()[usize::from(id.layer)];
                        let expected = record_bytes(*id, &file.layout);
                        // With and without room for padding, at good addresses and others.
                        let (bytes, stride) = (expected.len(), file.stride_bytes as usize);
                        for room in [bytes, bytes.next_multiple_of(4096), stride, stride + 1] {
                            for start in [0, 64] {
                                c.read_record(*id, &mut memory[start..start + room]).unwrap();
                                assert!(memory[start..start + bytes] == expected, "{id} {room} {start}");
                            }
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_damaged_record_is_noticed_only_where_reads_are_checked() {
    let (_dir, path) = written();
    let id = ExpertId { layer: 1, expert: 2 };
    let file = Container::open(&path).unwrap().record_files()[1].clone();
    // Once in the record, once in its padding.
    for at in [5, file.layout.bytes] {
        let at = 2 * file.stride_bytes + at;
        if at >= 3 * file.stride_bytes {
            continue;
        }
        flip(&file.path, at);
        for options in options() {
            let c = Container::open_with(&path, &options).unwrap();
            let mut memory = vec![0; 1 << 17];
            let memory = aligned(&mut memory);
            for room in [file.layout.bytes, file.stride_bytes] {
                let read = c.read_record(id, &mut memory[..room as usize]);
                let noticed =
                    matches!(&read, Err(ReadError::Checksum { what, .. }) if *what == id.to_string());
                assert_eq!(noticed, options.verify_reads, "{read:?}");
                assert!(noticed || read.is_ok());
            }
            c.read_record(ExpertId { layer: 1, expert: 1 }, memory).unwrap();
        }
        flip(&file.path, at);
    }
}

#[test]
fn a_file_that_is_cut_short_while_open_is_an_error() {
    for options in options() {
        let (_dir, path) = written();
        let c = Container::open_with(&path, &options).unwrap();
        let file = c.record_files()[0].clone();
        let mut memory = vec![0; 1 << 17];
        let out = &mut aligned(&mut memory)[..file.stride_bytes as usize];
        for left in [2 * file.stride_bytes + 1000, 2 * file.stride_bytes] {
            FileOptions::new().write(true).open(&file.path).unwrap().set_len(left).unwrap();
            let id = ExpertId { layer: 0, expert: 2 };
            match c.read_record(id, out) {
                Err(ReadError::Short { path, found, bytes, .. }) => {
                    assert_eq!((path, found), (file.path.clone(), left - 2 * file.stride_bytes));
                    assert_eq!(bytes, file.stride_bytes);
                }
                other => panic!("{other:?}"),
            }
            c.read_record(ExpertId { layer: 0, expert: 1 }, out).unwrap();
        }
        // One that takes the name of another is not read: the open one is.
        std::fs::remove_file(&c.record_files()[1].path).unwrap();
        std::fs::write(&c.record_files()[1].path, b"another").unwrap();
        let mut stride = vec![0; c.record_files()[1].stride_bytes as usize];
        c.read_record(ExpertId { layer: 1, expert: 0 }, &mut stride).unwrap();
        c.check_record(ExpertId { layer: 1, expert: 0 }, &stride).unwrap();
    }
}

#[test]
fn the_image_is_the_file_and_is_checked() {
    let (_dir, path) = written();
    let dense = path.join("dense.bin");
    let expected = std::fs::read(&dense).unwrap();
    for options in options() {
        let c = Container::open_with(&path, &options).unwrap();
        let mut memory = vec![0xff; expected.len() + 8192];
        let memory = aligned(&mut memory);
        let mut told = 0;
        c.read_image(&mut memory[..expected.len()], &mut |bytes| told += bytes).unwrap();
        assert!(memory[..expected.len()] == expected);
        assert_eq!(told, expected.len() as u64);
        let layout = c.image_layout("embed_tokens").unwrap();
        let mut part = vec![0; layout.range(Part::Weight).len()];
        c.read_dense("embed_tokens", Part::Weight, &mut part).unwrap();
        assert!(layout.slice(memory, Part::Weight) == part);
        assert!(c.image_layout("nothing").is_none());
        // Some of it, at an address that direct reads cannot use; and lengths that are none.
        c.read_image(&mut memory[64..64 + 4096], &mut |_| {}).unwrap();
        assert!(memory[64..64 + 4096] == expected[..4096]);
        for bytes in [100, expected.len() + 4096] {
            let read = c.read_image(&mut vec![0; bytes], &mut |_| {});
            assert!(matches!(read, Err(ReadError::Unknown { .. })), "{read:?}");
        }
        let parts = c.manifest().dense_parts();
        for part in [parts[0], parts[parts.len() / 2], parts[parts.len() - 1]] {
            let at = part.end - 1;
            flip(&dense, at);
            let end = (at as usize + 1).next_multiple_of(4096);
            let read = c.read_image(&mut memory[..end], &mut |_| {});
            let name = &c.manifest().dense.tensors[part.tensor].name;
            assert!(
                matches!(&read, Err(ReadError::Checksum { what, .. }) if what.ends_with(name)),
                "{read:?}"
            );
            // Parts that end later are not checked.
            if end > 4096 {
                c.read_image(&mut memory[..(at / 4096 * 4096) as usize], &mut |_| {}).unwrap();
            }
            flip(&dense, at);
        }
        let file = FileOptions::new().write(true).open(&dense).unwrap();
        file.set_len(expected.len() as u64 - 1).unwrap();
        let read = c.read_image(&mut memory[..expected.len()], &mut |_| {});
        assert!(matches!(read, Err(ReadError::Short { .. })), "{read:?}");
        std::fs::write(&dense, &expected).unwrap();
    }
}
