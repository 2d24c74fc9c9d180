//! The container through its public face: written, read, damaged in every way, verified.

#[cfg(test)]
mod common;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod placed;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod ring;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod v1;
#[cfg(test)]
mod verify;
#[cfg(test)]
mod writer;
