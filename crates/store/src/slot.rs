//! Slots: disjoint pieces of slabs, owned by the store and lent out as leases.
//!
//! Unsafe code that turns a slab's address into slices. It relies on one fact, that every slot was cut from its slab
//! exactly once.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use spinetail_core::{ExpertId, Slab};

/// One piece of a slab. Not `Clone`: whoever owns it is the only one that can reach its bytes.
pub(crate) struct Slot {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the memory alive.
    _slab: Arc<dyn Slab>,
}

// SAFETY: `base` points into the slab, which is Send + Sync and valid from any thread, and no two slots overlap.
unsafe impl Send for Slot {}
// SAFETY: through `&Slot` the bytes can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// Cuts a slab into as many slots of `slot_bytes` as fit. Consumes the only handle to the slab, so that no second
    /// set of slots can be cut from it.
    pub(crate) fn cut(slab: Box<dyn Slab>, slot_bytes: usize) -> Vec<Self> {
        let (base, n) = (slab.base(), slab.len() / slot_bytes);
        let slab: Arc<dyn Slab> = Arc::from(slab);
        (0..n)
            .map(|i| Self {
                // SAFETY: i * slot_bytes + slot_bytes <= slab.len(), so the address is inside the slab.
                base: unsafe { base.add(i * slot_bytes) },
                len: slot_bytes,
                _slab: Arc::clone(&slab),
            })
            .collect()
    }

    /// Where the bytes are, for a read that writes them while this slot is held and nobody looks.
    pub(crate) fn memory(&mut self) -> (NonNull<u8>, usize) {
        (self.base, self.len)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the slab is alive and initialised, and `&self` excludes writers (see `bytes_mut`).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` is exclusive and slots do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// A record in memory, kept from eviction for as long as this handle lives.
///
/// Cloning is cheap; an asynchronous backend keeps a clone until its work on the record has finished.
#[derive(Clone)]
pub struct Lease {
    pub(crate) id: ExpertId,
    pub(crate) slot: Arc<Slot>,
}

impl Lease {
    /// Which record this is.
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// The record's bytes, then whatever the slot holds past its end.
    pub fn bytes(&self) -> &[u8] {
        self.slot.bytes()
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.id)
    }
}
