//! Handing out disjoint pieces of a mutable slice, so that users of the pool need no unsafe code.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::Pool;

impl Pool {
    /// Runs `each` on every piece of `items`, `chunk_len` long except perhaps the last, with the piece's index.
    ///
    /// `items.chunks_mut(chunk_len).enumerate()`, in parallel.
    ///
    /// # Panics
    ///
    /// If `chunk_len` is zero, and as [`Pool::run`] does.
    pub fn for_each_chunk<T: Send>(
        &self,
        items: &mut [T],
        chunk_len: usize,
        each: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let pieces = Pieces::new(items, chunk_len);
        // SAFETY: `run` calls with each index below `count` once.
        self.run(pieces.count(), &|index| each(index, unsafe { pieces.get(index) }));
    }

    /// Runs `each` on the pieces of two slices in step: for example the heads' states and their outputs.
    ///
    /// `a.chunks_mut(a_len).zip(b.chunks_mut(b_len)).enumerate()`, in parallel.
    ///
    /// # Panics
    ///
    /// If a length is zero or if the two do not make the same number of pieces, and as [`Pool::run`] does.
    pub fn for_each_pair<A: Send, B: Send>(
        &self,
        (a, a_len): (&mut [A], usize),
        (b, b_len): (&mut [B], usize),
        each: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let (a, b) = (Pieces::new(a, a_len), Pieces::new(b, b_len));
        assert_eq!(a.count(), b.count(), "two slices in step have the same number of pieces");
        // SAFETY: `run` calls with each index below `count` once.
        self.run(a.count(), &|index| each(index, unsafe { a.get(index) }, unsafe { b.get(index) }));
    }
}

/// A slice that is being handed out in pieces.
struct Pieces<'a, T> {
    base: *mut T,
    len: usize,
    piece_len: usize,
    items: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it lets other threads have pieces, each of them one: that is sending `T`s.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    fn new(items: &'a mut [T], piece_len: usize) -> Self {
        assert_ne!(piece_len, 0, "a piece has a length");
        Self { base: items.as_mut_ptr(), len: items.len(), piece_len, items: PhantomData }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.piece_len)
    }

    /// # Safety
    ///
    /// `index < count`, and each index at most once: pieces of different indices do not overlap.
    #[expect(clippy::mut_from_ref, reason = "disjoint, as the caller promises")]
    unsafe fn get(&self, index: usize) -> &mut [T] {
        let start = index * self.piece_len;
        let len = self.piece_len.min(self.len - start);
        // SAFETY: within the slice, which is borrowed mutably for 'a; nobody else has this piece.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }
}
