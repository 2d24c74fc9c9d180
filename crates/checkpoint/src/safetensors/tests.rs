//! Headers good and hostile; what is accepted here, the safetensors crate accepts too.

use proptest::prelude::*;

use super::*;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.resize(out.len() + data, 7);
    out
}

const GOOD: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"U32","shape":[0],"data_offsets":[4,4]}}"#;

#[test]
fn offsets_are_from_the_start_of_the_file() {
    let header = parse_file(&file(GOOD, 16)).unwrap();
    assert_eq!(header.len(), 3);
    let b = &header["b"];
    assert_eq!((b.offset, b.bytes), (8 + GOOD.len() as u64 + 4, 12));
}

#[test]
fn hostile_headers_are_refused_with_the_tensor() {
    let one = |entry: &str| parse_file(&file(&format!("{{\"evil\":{entry}}}"), 16)).unwrap_err().to_string();
    for (entry, needle) in [
        (r#"{"dtype":"F32","shape":[4],"data_offsets":[0,12]}"#, "data_offsets [0, 12]"),
        (r#"{"dtype":"F32","shape":[5],"data_offsets":[0,20]}"#, "cut short"),
        (r#"{"dtype":"F32","shape":[3],"data_offsets":[0,12]}"#, "end with its last tensor"),
        (r#"{"dtype":"F32","shape":[3],"data_offsets":[4,16]}"#, "a start at byte"),
        (r#"{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#, "rise"),
        (r#"{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}"#, "data_offsets"),
        (r#"{"dtype":"F32","shape":[4],"data_offsets":[18446744073709551599,18446744073709551615]}"#, "rise"),
        (r#"{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}"#, "evil"),
        (r#"{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}"#, "evil"),
        (r#"{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]}"#, "dimensions"),
        (r#"[]"#, "evil"),
    ] {
        let text = one(entry);
        assert!(text.contains(needle), "{needle:?} is not in: {text}");
    }
    let twice = r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}"#;
    assert!(parse_file(&file(twice, 16)).unwrap_err().to_string().contains("tensor a is listed twice"));
    let overlap = r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[9],"data_offsets":[7,16]}}"#;
    assert!(parse_file(&file(overlap, 16)).unwrap_err().to_string().contains("tensor b"));
    let deep = "[".repeat(100_000);
    assert!(matches!(parse_file(&file(&deep, 0)), Err(HeaderError::Json { .. })));
    assert!(matches!(parse_file(&[1, 2, 3]), Err(HeaderError::Truncated { .. })));
    assert!(matches!(parse_file(&[0xff; 16]), Err(HeaderError::TooLarge { .. })));
    let mut long = 1000u64.to_le_bytes().to_vec();
    long.push(b'{');
    assert!(matches!(parse_file(&long), Err(HeaderError::Truncated { .. })));
}

proptest! {
    /// Whatever happens to a header, nothing panics, and what is accepted lies within the file and is accepted by the
    /// reference implementation too.
    #[test]
    fn mutated_headers(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), 0u64..40), 0..3),
        data in 0usize..20,
    ) {
        let mut header = GOOD.to_owned();
        for (at, value) in swaps {
            // Replace one run of digits.
            let starts: Vec<_> = header.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
            let i = starts[at.index(starts.len())];
            header.replace_range(i..=i, &value.to_string());
        }
        let mut bytes = file(&header, data);
        for (at, value) in edits {
            let i = at.index(bytes.len());
            bytes[i] = value;
        }
        if let Ok(found) = parse_file(&bytes) {
            for e in found.values() {
                prop_assert!(e.offset + e.bytes <= bytes.len() as u64);
            }
            // A type that the reference does not know is kept here, and refused when such a tensor is needed.
            if found.values().all(|e| !matches!(e.dtype, SourceType::Other(_))) {
                let reference = ::safetensors::SafeTensors::deserialize(&bytes);
                prop_assert_eq!(reference.map(|r| r.len()).map_err(|e| e.to_string()), Ok(found.len()));
            }
        }
    }
}
