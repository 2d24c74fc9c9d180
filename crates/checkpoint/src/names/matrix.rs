//! One matrix, or a stack of them: which format it is in, and whether shape, type and configuration agree on that.

use spinetail_core::{Affine, BITS, DType, Format, GROUP_SIZES};

use super::{Names, Result};
use crate::config::Setting;
use crate::error::CheckpointError;
use crate::safetensors::{SourceTensor, SourceType};
use crate::source::{Decode, Fp8, Run, Source};

/// A located matrix, or the first of a stack with the distance to the next.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    pub(crate) format: Format,
    parts: [Run; 3],
    decode: Decode,
    rows: usize,
    /// Rows of blocks, for FP8.
    block_rows: usize,
}

impl Matrix {
    /// All rows of matrix `i` of the stack, or those of `rows`.
    pub(crate) fn source(&self, i: usize, rows: Vec<std::ops::Range<usize>>) -> Source {
        let step = |run: &Run, rows: usize| Run {
            offset: run.offset + i as u64 * rows as u64 * run.row_bytes,
            ..*run
        };
        let decode = match self.decode {
            Decode::Fp8(f) => Decode::Fp8(Fp8 { scales: step(&f.scales, self.block_rows), ..f }),
            other => other,
        };
        Source { parts: self.parts.each_ref().map(|p| step(p, self.rows)), rows, decode }
    }

    pub(crate) fn whole(&self) -> Source {
        self.source(0, std::iter::once(0..self.rows).collect())
    }
}

fn run(t: &SourceTensor, row_bytes: u64) -> Run {
    Run { file: t.file, offset: t.offset, row_bytes }
}

fn shape_error(t: &SourceTensor, expected: &[usize]) -> CheckpointError {
    let found = format!("{} {:?}", t.dtype, t.shape);
    CheckpointError::Tensor {
        name: t.name.clone(),
        expected: format!("shape {expected:?}"),
        found,
        fix: "config.json does not belong to these files, or one of them is damaged".to_owned(),
    }
}

impl Names<'_> {
    /// Locates the matrix (or, with `stack`, as many of them in one tensor) named `short`, suffix included.
    pub(super) fn matrix(
        &mut self,
        short: &str,
        stack: Option<usize>,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix> {
        let weight = self.need(short)?;
        let module = short.strip_suffix(".weight").unwrap_or(short);
        let shape =
            |last: usize, rows: usize| -> Vec<usize> { stack.into_iter().chain([rows, last]).collect() };
        let quantized = self.has(&format!("{module}.scales"));
        match &weight.dtype {
            SourceType::U32 => self.affine(&weight, module, stack, rows, columns),
            // Codes without scales are named as such above; scales beside floats contradict each other.
            other if quantized => Err(CheckpointError::tensor(
                &weight.name,
                "U32 codes, since it has scales",
                other.to_string(),
            )),
            SourceType::Float(dtype) => {
                if weight.shape != shape(columns, rows) {
                    return Err(shape_error(&weight, &shape(columns, rows)));
                }
                self.check_unquantized(&weight, module)?;
                let row = run(&weight, (columns * dtype.bytes()) as u64);
                Ok(Matrix {
                    format: Format::Plain(*dtype),
                    parts: [row, Run::default(), Run::default()],
                    decode: Decode::Bytes,
                    rows,
                    block_rows: 0,
                })
            }
            SourceType::F8E4M3 => {
                if weight.shape != shape(columns, rows) {
                    return Err(shape_error(&weight, &shape(columns, rows)));
                }
                self.fp8(&weight, short, stack, rows, columns)
            }
            SourceType::Other(name) => Err(CheckpointError::Tensor {
                name: weight.name.clone(),
                expected: "F32, F16, BF16, U32 codes with scales, or F8_E4M3 with weight_scale_inv"
                    .to_owned(),
                found: name.to_string(),
                fix: "convert the checkpoint to bf16 first".to_owned(),
            }),
        }
    }

    /// A plain tensor to which an override of its own gives bits.
    fn check_unquantized(&self, weight: &SourceTensor, module: &str) -> Result<()> {
        let q = self.quantization;
        match q.overrides.get(module).and_then(|o| o.setting.map(|s| (&o.key, s.bits))) {
            None => Ok(()),
            Some((key, bits)) => Err(CheckpointError::tensor(
                &weight.name,
                format!("{bits}-bit codes, as {}.{key} says", q.field),
                format!("{} {:?}", weight.dtype, weight.shape),
            )),
        }
    }

    /// The setting that applies to a module, and the key that gives it.
    fn setting(&self, weight: &SourceTensor, module: &str) -> Result<Option<(String, Setting)>> {
        let q = self.quantization;
        match q.overrides.get(module) {
            Some(o) => match o.setting {
                Some(s) => Ok(Some((format!("{}.{}", q.field, o.key), s))),
                None => Err(CheckpointError::tensor(
                    &weight.name,
                    format!("an unquantized tensor, as {}.{} says", q.field, o.key),
                    format!("U32 {:?}", weight.shape),
                )),
            },
            None => Ok(q.default.map(|s| (q.field.clone(), s))),
        }
    }

    fn affine(
        &mut self,
        weight: &SourceTensor,
        module: &str,
        stack: Option<usize>,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix> {
        let parts: [SourceTensor; 2] =
            [self.need(&format!("{module}.scales"))?, self.need(&format!("{module}.biases"))?];
        let lead: Vec<usize> = stack.into_iter().chain([rows]).collect();
        for t in [weight, &parts[0], &parts[1]] {
            if t.shape.len() != lead.len() + 1 || t.shape[..lead.len()] != lead {
                let mut expected = lead.clone();
                expected.push(t.shape.last().copied().unwrap_or(0));
                return Err(shape_error(t, &expected));
            }
        }
        let last = |t: &SourceTensor| t.shape[lead.len()];
        let found = found_setting(last(weight), last(&parts[0]), columns);
        let describe = |s: Option<Setting>| match s {
            Some(s) => format!("{}-bit codes in groups of {}", s.bits, s.group_size),
            None => "no defined width".to_owned(),
        };
        let said = self.setting(weight, module)?;
        let Some(Setting { bits, group_size }) = found.filter(|f| said.as_ref().is_none_or(|(_, s)| s == f))
        else {
            let by = |(key, s): (String, Setting)| format!("{}, as {key} says", describe(Some(s)));
            return Err(CheckpointError::Tensor {
                name: weight.name.clone(),
                expected: said.map_or_else(|| "codes of 2, 3, 4, 5, 6 or 8 bits".to_owned(), by),
                found: format!(
                    "{} for {columns} columns (weight {:?}, scales {:?})",
                    describe(found),
                    weight.shape,
                    parts[0].shape
                ),
                fix: "correct this tensor's entry under quantization in config.json".to_owned(),
            });
        };
        let scales = float_type(&parts[0])?;
        if parts[1].shape != parts[0].shape || parts[1].dtype != parts[0].dtype {
            let expected = format!("{} {:?}, as its scales", parts[0].dtype, parts[0].shape);
            let found = format!("{} {:?}", parts[1].dtype, parts[1].shape);
            return Err(CheckpointError::tensor(&parts[1].name, expected, found));
        }
        let scale_bytes = (last(&parts[0]) * scales.bytes()) as u64;
        Ok(Matrix {
            format: Format::Affine(Affine { bits, group_size, scales }),
            parts: [
                run(weight, last(weight) as u64 * 4),
                run(&parts[0], scale_bytes),
                run(&parts[1], scale_bytes),
            ],
            decode: Decode::Bytes,
            rows,
            block_rows: 0,
        })
    }

    fn fp8(
        &mut self,
        weight: &SourceTensor,
        short: &str,
        stack: Option<usize>,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix> {
        let Some(block) = self.quantization.fp8_block else {
            return Err(CheckpointError::Tensor {
                name: weight.name.clone(),
                expected: "quantization_config.quant_method fp8 in config.json".to_owned(),
                found: "F8_E4M3 without it".to_owned(),
                fix: "get the config.json that belongs to the files".to_owned(),
            });
        };
        let Some(scales) = self.find(&format!("{short}_scale_inv")) else {
            return Err(CheckpointError::MissingTensor {
                name: format!("{}_scale_inv", weight.name),
                fix: format!("{} is F8_E4M3 and means nothing without its multipliers", weight.name),
            });
        };
        let blocks = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let expected: Vec<_> = stack.into_iter().chain(blocks).collect();
        if scales.shape != expected {
            return Err(shape_error(&scales, &expected));
        }
        let dtype = float_type(&scales)?;
        let fp8 = Fp8 { scales: run(&scales, (blocks[1] * dtype.bytes()) as u64), dtype, block };
        Ok(Matrix {
            format: Format::Plain(DType::F32),
            parts: [run(weight, columns as u64), Run::default(), Run::default()],
            decode: Decode::Fp8(fp8),
            rows,
            block_rows: blocks[0],
        })
    }
}

/// Width and group as the shapes have them, if they are defined.
fn found_setting(words: usize, groups: usize, columns: usize) -> Option<Setting> {
    let group_size = GROUP_SIZES.into_iter().find(|g| groups.checked_mul(*g) == Some(columns))?;
    let bits = BITS.into_iter().find(|&b| words.checked_mul(32) == columns.checked_mul(usize::from(b)))?;
    Some(Setting { bits, group_size })
}

/// The float type of scales or of a vector.
pub(super) fn float_type(t: &SourceTensor) -> Result<DType> {
    match &t.dtype {
        SourceType::Float(d) => Ok(*d),
        other => Err(CheckpointError::tensor(&t.name, "F32, F16 or BF16", other.to_string())),
    }
}
