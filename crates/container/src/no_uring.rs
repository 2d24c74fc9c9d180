//! Where there is no io_uring, or this was built without: a reason instead of a ring.

use std::io;

use spinetail_core::ReadRing;

use crate::Container;

pub(crate) fn ring(_: &Container, _reads: u32) -> io::Result<Box<dyn ReadRing + '_>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this build has none"))
}
