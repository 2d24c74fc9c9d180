//! The public API of spinetail: what turns a loaded model into answers.

pub mod text;
