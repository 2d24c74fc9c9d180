//! The instruction sets there are kernels for, and which of them this processor has.

use std::str::FromStr;

/// An instruction set, by what the kernels use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// No vector instructions: the meaning of every kernel, on any processor.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (Haswell and Zen 1 onwards).
    Avx2,
    /// [`Isa::Avx2`] with AVX-VNNI (Alder Lake, Sierra Forest and Zen 5 onwards).
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL (Skylake-X onwards).
    Avx512,
    /// [`Isa::Avx512`] with VNNI and VBMI (Ice Lake and Zen 4 onwards).
    Avx512Vnni,
    /// AArch64 with the vector instructions that all of them have.
    Neon,
    /// [`Isa::Neon`] with the dot products of Armv8.2 (`sdot`).
    NeonDotprod,
    /// [`Isa::NeonDotprod`] with the 8-bit matrix products of Armv8.6 (`usdot`, `smmla`).
    NeonI8mm,
}

/// A name that is no instruction set.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown instruction set {found:?}: one of {} is expected", Isa::ALL.map(Isa::name).join(", "))]
pub struct UnknownIsa {
    /// The name found.
    pub found: String,
}

impl Isa {
    /// All of them, each after those that it extends.
    pub const ALL: [Self; 8] = [
        Self::Scalar,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
    ];

    /// The fastest first.
    pub(super) const BEST_FIRST: [Self; 8] = [
        Self::Avx512Vnni,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx2,
        Self::NeonI8mm,
        Self::NeonDotprod,
        Self::Neon,
        Self::Scalar,
    ];

    /// The name that `--isa` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
        }
    }

    /// Whether this processor has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = || avx2() && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2(),
            Self::AvxVnni => avx2() && has!("avxvnni"),
            Self::Avx512 => avx512(),
            Self::Avx512Vnni => avx512() && has!("avx512vnni") && has!("avx512vbmi"),
            Self::Neon | Self::NeonDotprod | Self::NeonI8mm => false,
        }
    }

    /// Whether this processor has it.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    pub fn is_available(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        match self {
            Self::Scalar | Self::Neon => true,
            Self::NeonDotprod => has!("dotprod"),
            Self::NeonI8mm => has!("dotprod") && has!("i8mm"),
            Self::Avx2 | Self::AvxVnni | Self::Avx512 | Self::Avx512Vnni => false,
        }
    }

    /// Whether this processor has it.
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
    pub fn is_available(self) -> bool {
        self == Self::Scalar
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(s: &str) -> Result<Self, UnknownIsa> {
        let found = Self::ALL.into_iter().find(|isa| isa.name() == s);
        found.ok_or_else(|| UnknownIsa { found: s.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(error.contains("sse9") && error.contains("avx512-vnni"), "{error}");
    }
}
