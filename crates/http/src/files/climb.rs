//! `..` in the names of files: the configuration may climb (`root ../html`), clients may not.
//!
//! A path from a client is normalised, so no `..` stands in it. But one is made where a part of the path is put
//! behind something else: with `location /i { alias /data/www/; }`, `/i../x` would be `/data/www/../x`, and `$1` of
//! `^/i(.*)` or what a `rewrite` puts together may do the same. So whatever is put together is looked at here.

use std::ops::Range;

use weir_log::Level;

use crate::request::Request;
use weir_values::Template;

/// Whether a name has a `..` that the configuration does not vouch for; the log is told. The name begins with the
/// value of `begins`, behind the prefix where that is relative.
pub fn refused(r: &mut Request, name: &[u8], begins: &Template) -> bool {
    if !memchr::memchr_iter(b'.', name).any(|at| name.get(at + 1) == Some(&b'.')) {
        return false;
    }
    let (value, mut vouched) = begins.vouched(r);
    // The prefix was put before a value that begins with a variable.
    let shift = if name.starts_with(&value) { 0 } else { name.len().min(r.site.prefix.len() + 1) };
    for range in &mut vouched {
        *range = range.start + shift..range.end + shift;
    }
    if shift > 0 {
        vouched.push(0..shift);
    }
    let refused =
        ups(name).any(|up| !vouched.iter().any(|v| v.start <= up.start && up.end <= v.end));
    if refused {
        let name = weir_log::Bytes(name);
        r.log(Level::Error, format_args!("\"{name}\" leaves the directory that it is put below"));
    }
    refused
}

/// Where the elements `..` of a path stand.
fn ups(name: &[u8]) -> impl Iterator<Item = Range<usize>> {
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
        let found = |name: &[u8]| ups(name).map(|up| up.start).collect::<Vec<_>>();
        assert_eq!(found(b"/a/../b/.."), [3, 8]);
        assert_eq!(found(b"../a"), [0]);
        assert!(found(b"/a../..b/.../.").is_empty());
    }
}
