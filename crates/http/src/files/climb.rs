//! `..` in names of files. A configuration may use it (`root ../html`), a client may not.
//!
//! A path from a client is normalized, so it has no `..`. But a part of a path may form one when it
//! is appended to other text. With `location /i { alias /data/www/; }`, `/i../x` would become
//! `/data/www/../x`. Captures and replacements of `rewrite` may do the same. So each composed name
//! is checked here.

use std::ops::Range;

use weir_log::Level;

use crate::request::Request;
use weir_values::Template;

/// Whether a name has a `..` that is not from the configuration. That is logged. The name begins
/// with the value of `begins`, behind the prefix if the value is relative.
pub fn refused(r: &mut Request, name: &[u8], begins: &Template) -> bool {
    if !memchr::memchr_iter(b'.', name).any(|at| name.get(at + 1) == Some(&b'.')) {
        return false;
    }
    let (value, mut vouched) = begins.vouched(r);
    // The prefix was added in front of a value that begins with a variable.
    let shift = if name.starts_with(&value) { 0 } else { name.len().min(r.site.prefix.len() + 1) };
    for range in &mut vouched {
        *range = range.start + shift..range.end + shift;
    }
    if shift > 0 {
        vouched.push(0..shift);
    }
    let refused = parent_elements(name)
        .any(|element| !vouched.iter().any(|v| v.start <= element.start && element.end <= v.end));
    if refused {
        let name = weir_log::Bytes(name);
        r.log(Level::Error, format_args!("\"{name}\" leaves the directory that it is put below"));
    }
    refused
}

/// The positions of the elements `..` in a path.
fn parent_elements(name: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    name.split(|b| *b == b'/').filter_map(move |element| {
        let start = at;
        at += element.len() + 1;
        (element == b"..").then_some(start..start + 2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_elements_climb() {
        let found =
            |name: &[u8]| parent_elements(name).map(|element| element.start).collect::<Vec<_>>();
        assert_eq!(found(b"/a/../b/.."), [3, 8]);
        assert_eq!(found(b"../a"), [0]);
        assert!(found(b"/a../..b/.../.").is_empty());
    }
}
