//! What the pool is synchronised with: the standard library, or loom's checked stand-ins in a loom test.
//!
//! The pool takes atomics, locks, threads and the job's cell from here and from nowhere else, so that loom sees all of
//! them. A library that loom merely happens to be configured for, but not under test, is built on the standard ones.

#[cfg(all(loom, test))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};

#[cfg(not(all(loom, test)))]
pub(super) use self::cell::UnsafeCell;
#[cfg(not(all(loom, test)))]
pub(super) use std::{
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};

#[cfg(not(all(loom, test)))]
mod cell {
    /// The standard cell behind loom's interface, which is told when an access begins and ends.
    pub(in super::super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(in super::super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline]
        pub(in super::super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Whether this thread is running chunks of some pool.
pub(super) mod inside {
    use std::cell::Cell;

    #[cfg(not(all(loom, test)))]
    thread_local! { static INSIDE: Cell<bool> = const { Cell::new(false) } }
    #[cfg(all(loom, test))]
    loom::thread_local! { static INSIDE: Cell<bool> = Cell::new(false) }

    pub(in super::super) fn get() -> bool {
        INSIDE.with(Cell::get)
    }

    pub(in super::super) fn set(value: bool) {
        INSIDE.with(|inside| inside.set(value));
    }
}

/// Locks. Nothing that can panic runs under the pool's locks, and what they guard is whole at every moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A value on cache lines of its own. Two lines, since processors fetch them in pairs.
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);
