//! The fields of a stored head.

/// A field: its name and its value.
pub type Field<'a> = (&'a [u8], &'a [u8]);

/// The fields of a head, up to the empty line. Lines without a colon are skipped.
pub fn fields(head: &[u8]) -> impl Iterator<Item = Field<'_>> + Clone {
    let mut rest = head;
    let lines = std::iter::from_fn(move || {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = rest.get(..end)?.trim_ascii_end();
        rest = rest.get(end + 1..).unwrap_or_default();
        (!line.is_empty()).then_some(line)
    });
    lines.filter_map(field)
}

/// Parses a line. `None` for a status line.
pub fn field(line: &[u8]) -> Option<Field<'_>> {
    let at = memchr::memchr(b':', line)?;
    let (name, value) = (line.get(..at)?, line.get(at + 1..)?);
    // A status line has a space before any colon.
    (!name.is_empty() && !name.contains(&b' ')).then(|| (name, value.trim_ascii()))
}

/// The members of a comma-separated list. Commas in quoted strings do not separate.
pub fn members(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let ends = move |byte: &u8| {
        let is_escaped = std::mem::replace(&mut escaped, false);
        match byte {
            b'\\' if quoted && !is_escaped => escaped = true,
            b'"' if !is_escaped => quoted = !quoted,
            _ => {}
        }
        *byte == b',' && !quoted
    };
    line.split(ends).map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}
