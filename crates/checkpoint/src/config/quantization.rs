//! What a configuration says of quantized tensors: MLX's affine codes with per-tensor overrides, or blocks of FP8.

use std::collections::BTreeMap;

use serde_json::Value;
use spinetail_core::{Affine, DType};

use super::fields::{Fields, brief};
use crate::error::CheckpointError;
use crate::names::strip_prefix;

type Result<T> = std::result::Result<T, CheckpointError>;

/// Width and group of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) bits: u8,
    pub(crate) group_size: usize,
}

/// An override as written: the key in the file, and `None` for `false`, a tensor that is not quantized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) key: String,
    pub(crate) setting: Option<Setting>,
}

/// How tensors are stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Quantization {
    /// The field that says so, with dots: for messages.
    pub(crate) field: String,
    /// MLX's defaults.
    pub(crate) default: Option<Setting>,
    /// Per-tensor overrides by module name without prefix.
    pub(crate) overrides: BTreeMap<String, Override>,
    /// Rows and columns of a block of FP8.
    pub(crate) fp8_block: Option<[usize; 2]>,
}

impl Quantization {
    pub(super) fn parse(root: &Fields<'_>, nested: Option<&Fields<'_>>) -> Result<Self> {
        // mlx-lm writes the same object under both names and reads the first.
        for place in std::iter::once(root).chain(nested) {
            if let Some(block) = place.object("quantization")? {
                return Self::affine(&block);
            }
        }
        for place in std::iter::once(root).chain(nested) {
            if let Some(block) = place.object("quantization_config")? {
                return match block.text("quant_method")? {
                    None | Some("affine" | "mlx") => Self::affine(&block),
                    Some("fp8") => Self::fp8(&block),
                    Some(other) => {
                        Err(block.wrong("quant_method", "fp8, or MLX's affine without this field", other))
                    }
                };
            }
        }
        Ok(Self::default())
    }

    fn affine(block: &Fields<'_>) -> Result<Self> {
        let default = setting(block)?;
        let mut overrides = BTreeMap::new();
        for (key, value) in block.keys() {
            if matches!(key.as_str(), "bits" | "group_size" | "mode" | "quant_method") {
                continue;
            }
            let wanted = "true, false or an object with bits and group_size";
            let setting = match value {
                Value::Bool(true) => Some(default),
                Value::Bool(false) | Value::Null => None,
                Value::Object(_) => block.object(key)?.map(|b| setting(&b)).transpose()?,
                other => return Err(block.wrong(key, wanted, brief(other))),
            };
            let new = Override { key: key.clone(), setting };
            let module = strip_prefix(key).to_owned();
            if let Some(old) = overrides.insert(module, new.clone())
                && old.setting != new.setting
            {
                let expected = format!("the same as {}, which is the same tensor", old.key);
                return Err(block.wrong(key, &expected, brief(value)));
            }
        }
        Ok(Self { field: block.at().to_owned(), default: Some(default), overrides, fp8_block: None })
    }

    fn fp8(block: &Fields<'_>) -> Result<Self> {
        if let Some(fmt) = block.text("fmt")?
            && fmt != "e4m3"
        {
            return Err(block.wrong("fmt", "e4m3", fmt));
        }
        let size = block.list("weight_block_size")?;
        let size: Option<Vec<_>> =
            size.map(|s| s.iter().map(Value::as_u64).collect::<Option<_>>()).unwrap_or_default();
        if size.as_deref() != Some(&[128, 128]) {
            let found = block.get("weight_block_size").map_or_else(|| "nothing".to_owned(), brief);
            return Err(block.wrong("weight_block_size", "[128, 128]", found));
        }
        Ok(Self { field: "quantization_config".to_owned(), fp8_block: Some([128, 128]), ..Self::default() })
    }
}

fn setting(block: &Fields<'_>) -> Result<Setting> {
    if let Some(mode) = block.text("mode")?
        && mode != "affine"
    {
        return Err(block.wrong("mode", "affine", mode));
    }
    let (bits, group_size) = (block.need("bits")?, block.need("group_size")?);
    let affine = Affine { bits: u8::try_from(bits).unwrap_or(0), group_size, scales: DType::F32 };
    if !affine.is_defined() {
        let bad_bits = !spinetail_core::BITS.iter().any(|&b| usize::from(b) == bits);
        return Err(if bad_bits {
            block.wrong("bits", "2, 3, 4, 5, 6 or 8", bits.to_string())
        } else {
            block.wrong("group_size", "32, 64 or 128", group_size.to_string())
        });
    }
    Ok(Setting { bits: affine.bits, group_size })
}
