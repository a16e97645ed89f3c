/// MiB in a text such as `512m`, `2g` or `1.5g`; a plain number is bytes, as docker reads it. Rounded up.
///
/// # Errors
/// Says which forms are taken.
pub(crate) fn mebibytes(text: &str) -> Result<u64, String> {
    const MIB: f64 = 1024.0 * 1024.0;
    let bad = || "expected a size such as 512m, 2g or 1.5g, above zero".to_owned();
    let lower = text.to_ascii_lowercase();
    let letters = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(letters);
    let factor = match unit {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => MIB * 1024.0,
        "t" | "tb" | "tib" => MIB * 1024.0 * 1024.0,
        _ => return Err(bad()),
    };
    let is_plain =
        number.starts_with(|c: char| c.is_ascii_digit()) && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value: f64 = if is_plain { number.parse().map_err(|_| bad())? } else { return Err(bad()) };
    let mebibytes = (value * factor / MIB).ceil();
    if mebibytes >= 1.0 && mebibytes <= (1_u64 << 40) as f64 { Ok(mebibytes as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::mebibytes;

    #[test]
    fn units_of_docker_are_taken_and_rounded_up() {
        for (text, mib) in
            [("512m", 512), ("2g", 2048), ("1.5G", 1536), ("1", 1), ("1048577", 2), ("512MiB", 512), ("64k", 1)]
        {
            assert_eq!(mebibytes(text).unwrap(), mib, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "0", "0g", "-1m", "1x", "m", "1 g", "1.2.3g", "1e3m", "99999999t"] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }
}
