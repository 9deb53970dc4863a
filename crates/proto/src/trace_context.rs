//! The trace that a request belongs to, from its headers: W3C Trace Context, `traceparent` and
//! `tracestate`.

/// How long a `traceparent` of version 00 is.
pub const LENGTH: usize = 55;

/// More members a `tracestate` may not have.
const MEMBERS: usize = 32;

/// A span of a trace, as another one's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; not all zero.
    pub trace: [u8; 16],
    /// The span; not all zero.
    pub span: [u8; 8],
    /// The sender may have recorded it.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads the values of all `traceparent` lines of a request: none, or one that is well-formed. What follows a later
    /// version's flags is left alone.
    pub fn parse<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<TraceContext> {
        let text = lines.next()?;
        if lines.next().is_some() {
            return None;
        }
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let [version, trace, span, flags] = fields(known)?;
        let mut byte = [0; 1];
        hex(version, &mut byte)?;
        let fits = match byte {
            [0] => rest.is_empty(),
            [0xff] => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let mut context = TraceContext { trace: [0; 16], span: [0; 8], sampled: false };
        hex(trace, &mut context.trace)?;
        hex(span, &mut context.span)?;
        hex(flags, &mut byte)?;
        context.sampled = byte[0] & 1 != 0;
        (fits && context.trace != [0; 16] && context.span != [0; 8]).then_some(context)
    }

    /// The value of a `traceparent`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"00-");
        write_hex(&self.trace, out);
        out.push(b'-');
        write_hex(&self.span, out);
        out.extend_from_slice(if self.sampled { b"-01" } else { b"-00" });
    }
}

/// `VERSION-TRACE-SPAN-FLAGS`, each as long as it has to be.
fn fields(text: &[u8]) -> Option<[&[u8]; 4]> {
    let mut parts = text.split(|b| *b == b'-');
    let all = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    parts.next().is_none().then_some(all)
}

/// The value of all `tracestate` lines of a request as one; none where it is not well-formed.
pub fn state<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut keys: Vec<&[u8]> = Vec::new();
    let mut out = Vec::new();
    for member in lines.flat_map(|line| line.split(|b| *b == b',')) {
        let member = member.trim_ascii();
        if member.is_empty() {
            continue;
        }
        let at = member.iter().position(|b| *b == b'=')?;
        let (key, value) = (&member[..at], &member[at + 1..]);
        if !is_key(key) || !is_value(value) || keys.contains(&key) || keys.len() == MEMBERS {
            return None;
        }
        keys.push(key);
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(member);
    }
    (!out.is_empty()).then_some(out)
}

fn is_key(key: &[u8]) -> bool {
    let begins = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let goes_on = |b: &u8| begins(b) || b"_-*/@".contains(b);
    key.len() <= 256 && key.first().is_some_and(begins) && key.iter().all(goes_on)
}

fn is_value(value: &[u8]) -> bool {
    let fits = |b: &u8| matches!(b, b' '..=b'~') && !matches!(b, b',' | b'=');
    (1..=256).contains(&value.len()) && value.iter().all(fits)
}

/// Reads digits in lower case, two for each byte.
fn hex(text: &[u8], out: &mut [u8]) -> Option<()> {
    if text.len() != out.len() * 2 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(())
}

fn digit(ch: u8) -> Option<u8> {
    match ch {
        b'0'..=b'9' => Some(ch - b'0'),
        b'a'..=b'f' => Some(ch - b'a' + 10),
        _ => None,
    }
}

/// Writes bytes as digits in lower case.
pub fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parse(lines: &[&str]) -> Option<TraceContext> {
        TraceContext::parse(lines.iter().map(|line| line.as_bytes()))
    }

    fn states(lines: &[&str]) -> Option<String> {
        let found = state(lines.iter().map(|line| line.as_bytes()));
        found.map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn one_well_formed_parent_counts() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        let context = parse(&[&good]).unwrap();
        assert!(context.sampled);
        assert_eq!(context.trace[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(context.span[7], 0x31);
        assert!(!parse(&[&format!("00-{TRACE}-{SPAN}-fe")]).unwrap().sampled);
        // Two are ambiguous, whatever they say.
        assert_eq!(parse(&[&good, &good]), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn later_versions_may_say_more() {
        assert!(parse(&[&format!("cc-{TRACE}-{SPAN}-01")]).is_some());
        assert!(parse(&[&format!("cc-{TRACE}-{SPAN}-01-what-the-future-holds")]).is_some());
        assert!(parse(&[&format!("cc-{TRACE}-{SPAN}-01.what")]).is_none());
        assert!(parse(&[&format!("ff-{TRACE}-{SPAN}-01")]).is_none());
        assert!(parse(&[&format!("00-{TRACE}-{SPAN}-01-more")]).is_none());
        assert!(parse(&[&format!("00-{TRACE}-{SPAN}-01-")]).is_none());
    }

    #[test]
    fn what_is_not_well_formed_is_no_parent() {
        for bad in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("0-{TRACE}-{SPAN}-01x"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0G"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00.{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}{SPAN}--01"),
            format!("00-{TRACE}-{SPAN}-01 "),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("+0-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(parse(&[&bad]), None, "{bad}");
        }
    }

    #[test]
    fn states_are_joined_and_judged() {
        let long = "x".repeat(257);
        assert_eq!(states(&["a=1 , b=2", "", "c=3"]).unwrap(), "a=1,b=2,c=3");
        assert_eq!(states(&["fw529a3039@dt=FfAx~;,9z*/-_=1"]).unwrap().matches('=').count(), 2);
        for bad in ["", ",", "a", "a=", "=1", "A=1", "a=1,a=2", "a=b=c", "a=\u{7f}", "_a=1", "a =1"]
        {
            assert_eq!(states(&[bad]), None, "{bad}");
        }
        assert_eq!(states(&[&format!("{long}=1")]), None);
        assert_eq!(states(&[&format!("a={long}")]), None);
        let many: Vec<_> = (0..33).map(|n| format!("k{n}=v")).collect();
        assert_eq!(states(&[&many.join(",")]), None);
        assert!(states(&[&many[..32].join(",")]).is_some());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace: [u8; 16], span: [u8; 8], sampled: bool) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let context = TraceContext { trace, span, sampled };
            let mut text = Vec::new();
            context.write(&mut text);
            prop_assert_eq!(text.len(), LENGTH);
            prop_assert_eq!(TraceContext::parse([text.as_slice()].into_iter()), Some(context));
        }
    }
}
