//! Reads `error_page`.

use weir_conf::{Directive, Error, values};

use crate::config::scope::Scope;
use crate::site::core::{ErrorPage, Tell};

/// `error_page code ... [=[response]] page`
pub fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if s.first(d) {
        Scope::change(&mut s.location.core).error_pages.clear();
    }
    let Some((page_word, mut codes)) = d.args.split_last() else { return Ok(()) };
    let invalid = |word: &weir_conf::Word| d.invalid("value", word);
    let number = |text: &[u8]| values::number(text).and_then(|n| u16::try_from(n).ok());
    let mut tell = None;
    if let Some((last, rest)) = codes.split_last()
        && let Some(code) = last.bytes.strip_prefix(b"=")
    {
        codes = rest;
        tell = Some(match code {
            _ if rest.is_empty() => return Err(invalid(last)),
            b"" | b"0" => Tell::Page,
            code => Tell::This(number(code).ok_or_else(|| invalid(last))?),
        });
    }
    let page = match page_word.bytes.first() {
        Some(b'/' | b'@') => s.setup.template(d, page_word)?,
        // A URL is sent as `Location`.
        _ => s.setup.line(d, page_word)?,
    };
    for word in codes {
        let status = values::number(&word.bytes).filter(|n| *n != 499);
        let status = status.ok_or_else(|| invalid(word))?;
        if !(300..=599).contains(&status) {
            let text = format!("value \"{}\" must be between 300 and 599", word.lossy());
            return Err(d.error_at(word, text));
        }
        let tell = tell.unwrap_or(match status {
            494..=497 => Tell::This(400),
            _ => Tell::Same,
        });
        let entry = ErrorPage { status: status as u16, tell, page: page.clone() };
        Scope::change(&mut s.location.core).error_pages.push(entry);
    }
    Ok(())
}
