//! Memory for expert slots and dense weights: aligned, zeroed, in the pages that were asked for, and given back to the
//! system as soon as it is dropped.
//!
//! On Linux it is mapped for itself, so that the pages are ours to choose; elsewhere it is allocated as any other.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use spinetail_core::{Pages, SLAB_ALIGN, Slab, SlabError, SlotMemory};

/// Has the allocator map large blocks for themselves, for good, so that they go back to the system when they are freed.
///
/// glibc's takes them from its heap once some as large have been freed: the batches of a second long prompt then lie among
/// holes that the first one left, and a budget that held for the first does not. Others need no telling.
pub(crate) fn give_back_what_is_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;
        // From glibc's malloc.h.
        const M_MMAP_THRESHOLD: c_int = -3;
        unsafe extern "C" {
            fn mallopt(param: c_int, value: c_int) -> c_int;
        }
        // SAFETY: it sets a number of the allocator's, under the allocator's own lock. Where that is refused it stays.
        unsafe { mallopt(M_MMAP_THRESHOLD, 128 << 10) };
    }
}

/// Plain memory of the process. Slabs are resident when they are handed out: a direct read into memory that was never
/// touched would have it prepared page by page.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostMemory {
    /// The pages of the slabs.
    pub pages: Pages,
}

impl HostMemory {
    /// A block of `bytes` bytes, more than 0.
    pub fn region(&self, bytes: usize) -> Result<Region, SlabError> {
        Region::new(bytes, self.pages).filter(Region::make_resident).ok_or(SlabError { bytes })
    }
}

impl SlotMemory for HostMemory {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Slab>, SlabError> {
        Ok(Box::new(self.region(bytes)?))
    }
}

/// Alignment of memory that has room for one: the size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// A block of zeroed memory at one address, aligned to [`SLAB_ALIGN`], and to 2 MiB where it is at least as long.
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory that this value alone owns.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Memory that becomes resident as it is touched. `None` if the system has none, or `bytes` is 0.
    pub(crate) fn new(bytes: usize, pages: Pages) -> Option<Self> {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { SLAB_ALIGN };
        let base = if bytes == 0 { None } else { system::map(bytes, align, pages) }?;
        Some(Self { base, bytes })
    }

    /// Touches all pages. Whether there was memory for them, as far as the system says.
    fn make_resident(&self) -> bool {
        // SAFETY: the block is ours, and nobody reads or writes it yet.
        unsafe { system::make_resident(self.base, self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and the borrows of it have ended.
        unsafe { system::unmap(self.base, self.bytes) }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is valid and initialised for its length, and borrowed with this value.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

// SAFETY: the block is zeroed, aligned to at least SLAB_ALIGN, and lives at one address until drop.
unsafe impl Slab for Region {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ffi::c_void;
    use std::ptr::{NonNull, null_mut};

    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use rustix::param::page_size;

    use spinetail_core::Pages;

    fn whole_pages(bytes: usize) -> usize {
        bytes.next_multiple_of(page_size())
    }

    /// Maps `bytes` bytes at a multiple of `align`.
    pub(super) fn map(bytes: usize, align: usize, pages: Pages) -> Option<NonNull<u8>> {
        let page = page_size();
        let bytes = bytes.checked_next_multiple_of(page)?;
        let spare = if align > page { align } else { 0 };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice touches nothing else.
        let found = unsafe { mmap_anonymous(null_mut(), bytes.checked_add(spare)?, prot, flags) }.ok()?;
        let before = found.cast::<u8>().align_offset(align).min(spare);
        // SAFETY: what is unmapped, and where the block begins, lies within what was just mapped; both are multiples of
        // the page because `align` is one wherever there is something to spare.
        unsafe {
            let base = found.cast::<u8>().add(before);
            for (start, len) in [(found, before), (base.add(bytes).cast::<c_void>(), spare - before)] {
                if len > 0 {
                    let _ = munmap(start, len);
                }
            }
            let advice = match pages {
                Pages::Huge => Advice::LinuxHugepage,
                Pages::Small => Advice::LinuxNoHugepage,
            };
            // A kernel without huge pages refuses, and has only small ones to give.
            let _ = madvise(base.cast(), bytes, advice);
            NonNull::new(base)
        }
    }

    /// # Safety
    /// The block was mapped by [`map`] and nothing else uses it.
    pub(super) unsafe fn make_resident(base: NonNull<u8>, bytes: usize) -> bool {
        let all = whole_pages(bytes);
        // SAFETY: as the caller promises; the pages are written as they are.
        match unsafe { madvise(base.as_ptr().cast(), all, Advice::LinuxPopulateWrite) } {
            Ok(()) => true,
            Err(Errno::NOMEM) => false,
            // Kernels before 5.14 do not know the request.
            Err(_) => {
                for at in (0..bytes).step_by(page_size()) {
                    // SAFETY: within the block.
                    unsafe { base.add(at).write_volatile(0) }
                }
                true
            }
        }
    }

    /// # Safety
    /// The block was mapped by [`map`] with this length, and nothing uses it any longer.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: as the caller promises.
        let _ = unsafe { munmap(base.as_ptr().cast(), whole_pages(bytes)) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use spinetail_core::{Pages, SLAB_ALIGN};

    use super::HUGE_PAGE;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, if bytes >= HUGE_PAGE { HUGE_PAGE } else { SLAB_ALIGN }).ok()
    }

    /// Allocates `bytes` bytes, more than 0; `align` follows from them.
    pub(super) fn map(bytes: usize, _align: usize, _: Pages) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size above zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
    }

    /// # Safety
    /// The block was allocated by [`map`] and nothing else uses it.
    pub(super) unsafe fn make_resident(base: NonNull<u8>, bytes: usize) -> bool {
        for at in (0..bytes).step_by(4096) {
            // SAFETY: within the block.
            unsafe { base.add(at).write_volatile(0) }
        }
        true
    }

    /// # Safety
    /// The block was allocated by [`map`] with this length, and nothing uses it any longer.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: as the caller promises.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_aligned_zeroed_and_impossible_ones_are_refused() {
        for pages in Pages::ALL {
            for bytes in [1, SLAB_ALIGN, HUGE_PAGE, (5 << 20) + 4096] {
                let slab = HostMemory { pages }.allocate(bytes).unwrap();
                let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { SLAB_ALIGN };
                assert_eq!(slab.base().as_ptr().addr() % align, 0);
                assert_eq!(slab.len(), bytes);
                let mut region = Region::new(bytes, pages).unwrap();
                assert!(region.iter().all(|&b| b == 0));
                region[bytes - 1] = 1;
            }
            assert!(HostMemory { pages }.allocate(usize::MAX).is_err());
            assert!(HostMemory { pages }.allocate(usize::MAX / 4).is_err());
            assert!(HostMemory { pages }.allocate(0).is_err());
        }
    }

    /// Resident bytes of the mapping that holds `at`.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn resident_bytes(at: usize, bytes: usize) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut resident = 0;
        let mut ours = false;
        for line in maps.lines() {
            let first = line.split_whitespace().next()?;
            if let Some((start, end)) = first.split_once('-')
                && let (Ok(start), Ok(end)) =
                    (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                ours = start < at + bytes && end > at;
            } else if ours && first == "Rss:" {
                resident += line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024;
            }
        }
        Some(resident)
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn slabs_are_resident_at_once_and_gone_when_dropped() {
        let bytes = 16 << 20;
        for pages in Pages::ALL {
            let slab = HostMemory { pages }.allocate(bytes).unwrap();
            let at = slab.base().as_ptr().addr();
            let Some(resident) = resident_bytes(at, bytes) else { return };
            assert!(resident >= bytes, "{pages}: {resident}");
            drop(slab);
            // Whatever the system maps here next is not as large by accident.
            assert!(resident_bytes(at, bytes).unwrap() < resident, "{pages}");
        }
        let untouched = Region::new(bytes, Pages::Small).unwrap();
        assert!(resident_bytes(untouched.base.as_ptr().addr(), bytes).unwrap() < bytes);
    }
}
