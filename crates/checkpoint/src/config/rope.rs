//! Rotary positions: at the top level in older files, under `rope_parameters` in newer ones, for nested configurations
//! on either side of `text_config`.

use serde_json::Value;

use super::fields::{Fields, brief};
use crate::error::CheckpointError;

type Result<T> = std::result::Result<T, CheckpointError>;

/// What a text-only model rotates by. Sections of M-RoPE change nothing for text: all three positions are equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rope {
    pub(super) theta: f64,
    partial: f64,
}

impl Rope {
    /// Leading dimensions that are rotated.
    pub(super) fn rotary_dims(&self, text: &Fields<'_>, head_dim: usize) -> Result<usize> {
        if !(self.partial > 0.0 && self.partial <= 1.0) {
            return Err(text.wrong("partial_rotary_factor", "above 0, at most 1", self.partial.to_string()));
        }
        Ok((head_dim as f64 * self.partial) as usize)
    }
}

pub(super) fn parse(root: &Fields<'_>, text: &Fields<'_>) -> Result<Rope> {
    let nested = text.at() != root.at();
    let places: &[&Fields<'_>] = if nested { &[text, root] } else { &[text] };
    let mut blocks = Vec::new();
    for place in places {
        for field in ["rope_parameters", "rope_scaling"] {
            if let Some(block) = place.object(field)? {
                check_block(&block)?;
                blocks.push(block);
            }
        }
    }
    // A value in a block outweighs one outside: converters that move it into the block leave a stale one behind.
    let blocks: Vec<_> = blocks.iter().collect();
    let find = |field: &str| -> Result<Option<f64>> {
        match one_value(&blocks, field)? {
            Some(v) => Ok(Some(v)),
            None => one_value(places, field),
        }
    };
    let theta = find("rope_theta")?.ok_or_else(|| {
        let fix = "add the base that the model was trained with; there is no safe default";
        text.wrong_but("rope_theta", "a number, here or in rope_parameters", "nothing", fix)
    })?;
    // Both families' configuration classes rotate a quarter of each head when no file says otherwise.
    let partial = find("partial_rotary_factor")?.unwrap_or(0.25);
    Ok(Rope { theta, partial })
}

/// The value of `field` in those places that have it, which must agree.
fn one_value(places: &[&Fields<'_>], field: &str) -> Result<Option<f64>> {
    let mut value: Option<(String, f64)> = None;
    for place in places {
        let Some(found) = place.number(field)? else { continue };
        match &value {
            Some((name, first)) if *first != found => {
                let fix = "remove whichever of the two is stale";
                return Err(place.wrong_but(
                    field,
                    &format!("{first}, as {name} says"),
                    found.to_string(),
                    fix,
                ));
            }
            Some(_) => {}
            None => value = Some((place.name(field), found)),
        }
    }
    Ok(value.map(|(_, v)| v))
}

fn check_block(block: &Fields<'_>) -> Result<()> {
    for field in ["rope_type", "type"] {
        if let Some(kind) = block.text(field)?
            && kind != "default"
        {
            return Err(block.wrong(field, "default", kind));
        }
    }
    for (key, value) in block.keys() {
        let known = matches!(
            key.as_str(),
            "rope_type"
                | "type"
                | "rope_theta"
                | "partial_rotary_factor"
                | "mrope_section"
                | "mrope_interleaved"
                | "original_max_position_embeddings"
        );
        if !known && *value != Value::Null {
            return Err(block.wrong(key, "nothing: this rotary option is not known", brief(value)));
        }
    }
    Ok(())
}
