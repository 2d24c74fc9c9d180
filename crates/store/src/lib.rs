//! A bounded cache of expert records.
//!
//! The store knows records by [`ExpertId`] and bytes by the slot they lie in; it never looks inside a record, and
//! knows nothing of tensors, tokens or model names. Slot memory belongs to whoever computes on it: the store is given
//! a [`SlotMemory`] and decides only which record lies where.
//!
//! A record that is needed is read straight into the slot where it will be used, one positioned read each, and handed
//! out as a [`Lease`]: an owned handle that keeps the slot from being reused for as long as it lives.
//!
//! [`ExpertId`]: spinetail_core::ExpertId
//! [`SlotMemory`]: spinetail_core::SlotMemory

mod error;
mod faults;
mod fetch;
pub mod policy;
mod readers;
pub mod replay;
mod ring;
mod slabs;
mod slot;
mod stats;
mod store;
pub mod trace;

pub use error::StoreError;
pub use faults::{Fault, FaultySource};
pub use fetch::Fetch;
pub use policy::PolicyKind;
pub use slabs::slot_bytes;
pub use slot::Lease;
pub use stats::StoreStats;
pub use store::{ExpertStore, StoreOptions, Use};
