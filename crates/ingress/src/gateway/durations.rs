//! Durations of the API.

/// The milliseconds of a duration of the API, such as `1h30m` or `500ms`.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0u64);
    if text.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let (unit, length) = units.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = rest.get(unit.len()..)?;
        total = total.checked_add(number.checked_mul(length)?)?;
    }
    (total <= 1_000_000_000_000).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn durations_are_those_of_the_api() {
        for (text, wanted) in [
            ("500ms", Some(500)),
            ("1h30m", Some(5_400_000)),
            ("10s5ms", Some(10_005)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("s", None),
            ("1d", None),
        ] {
            assert_eq!(milliseconds(text), wanted, "{text}");
        }
    }
}
