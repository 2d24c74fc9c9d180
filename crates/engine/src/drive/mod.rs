//! How the drive that a model lies on is best read: measured once, and remembered.
//!
//! Drives differ in what they like: one virtual disk reads three to five times faster into large pages, another slower;
//! some serve one read as fast as eight. [`probe_drive`] tries the ways there are on a model's own files,
//! [`DriveProfile`] is the way that was fastest, and [`DriveProfiles`] keeps profiles in a folder that the caller names.

mod identity;
mod probe;
mod profile;

pub use identity::DriveId;
pub use probe::{DriveProbe, ProbeError, RunnerUp, Shortage, probe_drive};
pub use profile::{DriveProfile, DriveProfiles, ForeignProfile};
