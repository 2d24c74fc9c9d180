//! Every kernel on every instruction set of this machine against its scalar meaning, byte for byte, and the meaning
//! against f64.

mod functions;
mod matrix;
mod random;

use super::{Isa, Kernels};

/// The kernels of all instruction sets that this machine has, the scalar ones first.
fn all() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect()
}

/// Those that are not the meaning itself.
fn fast_ones() -> Vec<Kernels> {
    all().split_off(1)
}

/// Fails on the first element whose bits differ; one NaN is as good as another.
#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || (f.is_nan() && e.is_nan());
        assert!(same, "{what}: element {i} is {f:e} ({:08x}), not {e:e} ({:08x})", f.to_bits(), e.to_bits());
    }
}

#[test]
fn an_instruction_set_that_is_missing_has_no_kernels() {
    for isa in Isa::ALL {
        assert_eq!(Kernels::for_isa(isa).is_some(), isa.is_available(), "{isa}");
    }
    println!("tested on this machine: {:?}", all());
    assert!(Kernels::detect().isa().is_available());
}
