//! The header `If` (RFC 4918, section 10.4): the conditions of a request, with the lock tokens of
//! its client. Also the text form of tokens.

/// The most lists in a header.
const LISTS: usize = 64;

/// A list of conditions that must all hold.
#[derive(Debug, PartialEq, Eq)]
pub struct List<'t> {
    /// The resource of the conditions, as a URI. `None`: that of the request.
    pub of: Option<&'t [u8]>,
    /// The conditions.
    pub all: Vec<Condition<'t>>,
}

/// A condition.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition<'t> {
    /// `Not`: the state must not match.
    pub not: bool,
    /// The expected state.
    pub state: ResourceState<'t>,
}

/// The state of a resource: a lock token or an entity tag.
#[derive(Debug, PartialEq, Eq)]
pub enum ResourceState<'t> {
    /// The resource is locked with this token.
    Token(&'t [u8]),
    /// The resource has this entity tag.
    Tag(&'t [u8]),
}

/// Parses the header. At least one of the lists must hold. `None` if the header is malformed.
pub fn parse(text: &[u8]) -> Option<Vec<List<'_>>> {
    let (mut rest, mut of, mut lists) = (text.trim_ascii(), None, Vec::new());
    while !rest.is_empty() && lists.len() < LISTS {
        if let Some(inside) = rest.strip_prefix(b"<") {
            let (uri, behind) = until(inside, b'>')?;
            (of, rest) = (Some(uri), behind.trim_ascii_start());
        }
        let (all, behind) = conditions(rest.strip_prefix(b"(")?)?;
        lists.push(List { of, all });
        rest = behind.trim_ascii_start();
    }
    (rest.is_empty() && !lists.is_empty()).then_some(lists)
}

fn conditions(mut rest: &[u8]) -> Option<(Vec<Condition<'_>>, &[u8])> {
    let mut all = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(behind) = rest.strip_prefix(b")") {
            return (!all.is_empty()).then_some((all, behind));
        }
        let not = rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case(b"not"));
        if not {
            rest = rest[3..].trim_ascii_start();
        }
        let (state, behind) = match rest.split_first()? {
            (b'<', inside) => {
                until(inside, b'>').map(|(text, rest)| (ResourceState::Token(text), rest))?
            }
            (b'[', inside) => {
                until(inside, b']').map(|(text, rest)| (ResourceState::Tag(text), rest))?
            }
            _ => return None,
        };
        all.push(Condition { not, state });
        rest = behind;
    }
}

fn until(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(end, text)?;
    Some((&text[..at], &text[at + 1..]))
}

const SCHEME: &str = "urn:uuid:";

/// The text form of a token: a URI.
pub fn write(token: u128) -> String {
    let hex = format!("{token:032x}");
    format!(
        "{SCHEME}{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The token of a text form.
pub fn read(text: &[u8]) -> Option<u128> {
    let text = std::str::from_utf8(text).ok()?;
    let token = u128::from_str_radix(&text.strip_prefix(SCHEME)?.replace('-', ""), 16).ok()?;
    (write(token) == text.to_ascii_lowercase()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let condition = |not, state| Condition { not, state };
        let (token, tag) = (ResourceState::Token(b"a:b"), ResourceState::Tag(b"\"c\""));
        let lists = parse(b" (<a:b>[\"c\"]) <http://h/x> (Not <DAV:no-lock>) (not<a:b>)").unwrap();
        assert_eq!(lists[0].all, [condition(false, token), condition(false, tag)]);
        let no_lock = condition(true, ResourceState::Token(b"DAV:no-lock"));
        assert_eq!((lists[1].of, &lists[1].all), (Some(&b"http://h/x"[..]), &vec![no_lock]));
        assert_eq!((lists.len(), lists[0].of, lists[2].of), (3, None, Some(&b"http://h/x"[..])));
        for bad in
            ["", "x", "(", "()", "(<a", "(<a>", "([a)", "<a>", "<a> <b> (<c>)", "(<a>) x", "(Not)"]
        {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert!(parse("(<a>)".repeat(LISTS).as_bytes()).is_some());
        assert!(parse("(<a>)".repeat(LISTS + 1).as_bytes()).is_none());
    }

    #[test]
    fn tokens_are_read_as_they_are_written() {
        for token in [0, 1, u128::MAX, 0x1234_5678_9abc_def0_1234_5678_9abc_def0] {
            assert_eq!(read(write(token).as_bytes()), Some(token));
        }
        let text = write(7);
        assert_eq!(read(text.replace("urn:", "URN:").as_bytes()), None);
        for bad in ["", "urn:uuid:", "urn:uuid:7", &text[..text.len() - 1], &format!("{text}0")] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn conditions_of_any_text() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for list in parse(bytes).into_iter().flatten() {
                assert!(!list.all.is_empty());
            }
        });
    }
}
