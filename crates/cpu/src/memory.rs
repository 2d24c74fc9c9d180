//! Slot memory for the CPU: plain, aligned, zeroed.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use spinetail_core::{SLAB_ALIGN, Slab, SlabError, SlotMemory};

/// Plain memory of the process.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostMemory;

/// Alignment of a slab: whole 2 MiB pages where the slab is at least one, so that the system may use huge ones.
const HUGE_PAGE: usize = 2 << 20;

struct HostSlab {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain heap memory that this value alone owns.
unsafe impl Send for HostSlab {}
// SAFETY: as above.
unsafe impl Sync for HostSlab {}

// SAFETY: the block is zeroed, aligned to at least SLAB_ALIGN, and lives at one address until drop.
unsafe impl Slab for HostSlab {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HostSlab {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl SlotMemory for HostMemory {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Slab>, SlabError> {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { SLAB_ALIGN };
        let layout = Layout::from_size_align(bytes.max(1), align).map_err(|_| SlabError { bytes })?;
        // SAFETY: the layout has a size above zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(SlabError { bytes })?;
        Ok(Box::new(HostSlab { base, layout }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_aligned_and_impossible_ones_are_refused() {
        for bytes in [1, SLAB_ALIGN, 5 << 20] {
            let slab = HostMemory.allocate(bytes).unwrap();
            assert_eq!(slab.base().as_ptr() as usize % SLAB_ALIGN, 0);
            assert_eq!(slab.len(), bytes);
        }
        assert!(HostMemory.allocate(usize::MAX).is_err());
    }
}
