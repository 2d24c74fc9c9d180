//! Sizes as people type and read them.

/// A number without a unit is bytes from here on: below, somebody forgot the unit.
const LEAST_PLAIN_BYTES: f64 = 1024.0 * 1024.0;

/// Parses a size in bytes: a number with a unit, `2.6GiB`, `512 MiB`, `4G` (binary), `4GB` (decimal), or plain bytes, of
/// which there have to be a mebibyte.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let wrong = || format!("expected a size such as 2.6GiB, 512MiB or 4GB, found {text:?}");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(wrong()),
    };
    let bytes = number * unit;
    // Past 2^53 the product is no longer exact, and no machine has that much.
    if !(1.0..9e15).contains(&bytes) {
        return Err(wrong());
    }
    if text.len() == split && bytes < LEAST_PLAIN_BYTES {
        return Err(format!(
            "{text} without a unit is {text} bytes: was {text}GiB meant, or {text}MiB? write the unit, as in {text}GiB"
        ));
    }
    Ok(bytes as u64)
}

/// A size that is the least of something, in whole mebibytes: rounded up, so that it is enough when it is typed.
pub(crate) fn least_size(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// A size for people: three significant digits, binary units.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert_eq!(parse_size(" 512 MiB "), Ok(512 << 20));
        assert_eq!(parse_size("2.5g"), Ok(5 << 29));
        assert_eq!(parse_size("4GB"), Ok(4_000_000_000));
        assert_eq!(parse_size("4294967296"), Ok(4 << 30));
        assert_eq!(parse_size("4096B"), Ok(4096));
        for forgotten in ["4", "2.5", "1048575", " 16 "] {
            let reason = parse_size(forgotten).unwrap_err();
            assert!(reason.contains(&format!("was {}GiB meant", forgotten.trim())), "{reason}");
        }
        for wrong in ["", "0.5", "GiB", "-1", "4 pounds", "1e9", "nan", "0", "99999999TiB", "1.2.3G"] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_least_that_is_said_is_enough() {
        for bytes in [1, (87 << 20) - 1, 87 << 20, (87 << 20) + 1, 5_000_000_001] {
            let said = parse_size(&least_size(bytes)).unwrap();
            assert!(said >= bytes && said < bytes + (1 << 20), "{bytes}: {said}");
        }
    }

    #[test]
    fn sizes_are_written_with_three_digits() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1_769_472), "1.69 MiB");
        assert_eq!(size(18 << 30), "18.0 GiB");
        assert_eq!(size(1023 << 20), "1.00 GiB");
    }
}
