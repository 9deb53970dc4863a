//! Makes directives.

use weir_conf::Directive;

use crate::report::ObjectId;

/// A directive. Its arguments may have any text.
pub(crate) fn line<'w>(name: &str, words: impl IntoIterator<Item = &'w str>) -> Directive {
    Directive::new(name, words)
}

/// A directive of headers-more, for a header with its value or for a name alone. The module ignores
/// blanks before a name. Without one, it would read a name that begins with `-` as an option.
pub(crate) fn header_line(name: &str, header: &str) -> Directive {
    let blank = if header.starts_with('-') { " " } else { "" };
    line(name, [format!("{blank}{header}").as_str()])
}

/// The name of a location for subrequests. Paths of objects begin with a slash, so none of them
/// takes the name.
pub(crate) fn subrequest_name(kind: &str, key: &str) -> String {
    format!("{kind}-{key}")
}

/// Counts requests under the name of their object: `weir_zone_requests_total{zone="Ingress
/// shop/web"}`.
pub(crate) fn counted(id: &ObjectId) -> Directive {
    line("status_zone", [id.to_string().as_str()])
}

/// Counts requests for which `variable` has a value as the canary's: `{zone="Ingress shop/web
/// canary new:80"}`.
pub(super) fn counted_if(id: &ObjectId, servers: &str, variable: &str) -> Directive {
    let zone = format!("{id} canary {servers}");
    line("status_zone", [zone.as_str(), &format!("if={variable}")])
}

/// `if (LEFT OPERATOR RIGHT) { ... }`.
pub(crate) fn when(left: &str, operator: &str, right: &str, then: Vec<Directive>) -> Directive {
    let (left, right) = (format!("({left}"), format!("{right})"));
    line("if", [left.as_str(), operator, right.as_str()]).with_block(then)
}

/// The digest of a text, 20 hexadecimal digits.
pub(crate) fn digest(text: &[u8]) -> String {
    use sha1::{Digest, Sha1};
    Sha1::digest(text).iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}
