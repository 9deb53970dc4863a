//! Reads the XML bodies of WebDAV, and writes elements of them that can be read on their own.

use roxmltree::{Document, Node, NodeType, ParsingOptions};

/// The most nodes of a body.
const MOST: u32 = 8192;
/// The most declarations of namespaces. The parser's time grows with the cube of their number.
const MOST_NAMESPACES: usize = 512;
/// The namespace of the prefix `xml`.
const XML: &str = "http://www.w3.org/XML/1998/namespace";

/// The name of an element: its namespace and its local name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Empty for none.
    pub namespace: String,
    /// Without a prefix.
    pub local: String,
}

impl Name {
    pub fn of(element: Node<'_, '_>) -> Name {
        let name = element.tag_name();
        let namespace = name.namespace().unwrap_or_default().to_owned();
        Name { namespace, local: name.name().to_owned() }
    }

    /// The local name, if the namespace is `DAV:`.
    pub fn of_dav(&self) -> Option<&str> {
        (self.namespace == "DAV:").then_some(&self.local)
    }

    /// The length of the element that [`Name::write`] appends.
    pub fn size(&self) -> usize {
        "<n: xmlns:n=\"\"/>".len() + self.namespace.len() + self.local.len()
    }

    /// Appends an empty element of this name.
    pub fn write(&self, out: &mut Vec<u8>) {
        begin(&self.namespace, &self.local, out);
        out.extend_from_slice(b"/>");
    }
}

/// Parses a body. `None` if it is not XML, if it declares too many namespaces, or if it declares a
/// prefix with an empty namespace. The parser accepts the latter, although "Namespaces in XML 1.0",
/// section 2.2, forbids it.
pub fn document(body: &[u8]) -> Option<Document<'_>> {
    if declares_too_many(body) {
        return None;
    }
    let options = ParsingOptions { nodes_limit: MOST, ..Default::default() };
    let document = Document::parse_with_options(std::str::from_utf8(body).ok()?, options).ok()?;
    let nameless = |node: Node<'_, '_>| {
        node.namespaces().any(|named| named.name().is_some() && named.uri().is_empty())
    };
    (!document.descendants().any(nameless)).then_some(document)
}

/// Whether a text declares more namespaces than [`document`] accepts.
pub fn declares_too_many(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, b"xmlns").nth(MOST_NAMESPACES).is_some()
}

/// Appends an element with its contents and its language. Does not recurse, since a body may be
/// nested deeply. Stops in the middle once `out` has more than `most` bytes: each element declares
/// its namespace, so a small body may become a thousand times as long.
pub fn write(element: Node<'_, '_>, most: usize, out: &mut Vec<u8>) {
    let outside = element.ancestors().skip(1).find_map(|node| node.attribute((XML, "lang")));
    let outside = outside.filter(|_| element.attribute((XML, "lang")).is_none());
    let mut at = element;
    loop {
        open(at, outside.filter(|_| at == element), most, out);
        if out.len() > most {
            return;
        }
        if let Some(child) = at.first_child() {
            at = child;
            continue;
        }
        loop {
            close(at, out);
            if at == element {
                return;
            }
            if let Some(next) = at.next_sibling() {
                at = next;
                break;
            }
            let Some(parent) = at.parent() else { return };
            at = parent;
        }
    }
}

/// Appends the contents of an element, as [`write()`] does.
pub fn write_inside(element: Node<'_, '_>, most: usize, out: &mut Vec<u8>) {
    for child in element.children() {
        if out.len() > most {
            return;
        }
        write(child, most, out);
    }
}

/// Appends the beginning of a start tag. Each element declares its own namespace, so that it can be
/// read alone.
fn begin(namespace: &str, local: &str, out: &mut Vec<u8>) {
    if namespace.is_empty() {
        out.push(b'<');
        out.extend_from_slice(local.as_bytes());
        return;
    }
    out.extend_from_slice(b"<n:");
    out.extend_from_slice(local.as_bytes());
    declare("n", namespace, out);
}

fn declare(prefix: &str, namespace: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!(" xmlns:{prefix}=\"").as_bytes());
    escape(namespace, out);
    out.push(b'"');
}

fn open(node: Node<'_, '_>, lang: Option<&str>, most: usize, out: &mut Vec<u8>) {
    match node.node_type() {
        NodeType::Element => {}
        NodeType::Text => return escape(node.text().unwrap_or_default(), out),
        _ => return,
    }
    let name = node.tag_name();
    begin(name.namespace().unwrap_or_default(), name.name(), out);
    if let Some(lang) = lang {
        value("xml:lang", lang, out);
    }
    for (i, attribute) in node.attributes().enumerate() {
        if out.len() > most {
            return;
        }
        let local = attribute.name();
        match attribute.namespace() {
            None => value(local, attribute.value(), out),
            Some(XML) => value(&format!("xml:{local}"), attribute.value(), out),
            Some(namespace) => {
                let prefix = format!("a{i}");
                declare(&prefix, namespace, out);
                value(&format!("{prefix}:{local}"), attribute.value(), out);
            }
        }
    }
    out.push(b'>');
}

fn value(name: &str, value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!(" {name}=\"").as_bytes());
    escape(value, out);
    out.push(b'"');
}

fn close(node: Node<'_, '_>, out: &mut Vec<u8>) {
    if node.is_element() {
        let name = node.tag_name();
        out.extend_from_slice(if name.namespace().is_some_and(|n| !n.is_empty()) {
            b"</n:"
        } else {
            b"</"
        });
        out.extend_from_slice(name.name().as_bytes());
        out.push(b'>');
    }
}

/// Appends text of an element or attribute. White space other than a space becomes a character
/// reference, since a parser would change it.
fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\r' | b'\n' | b'\t' => out.extend_from_slice(format!("&#{byte};").as_bytes()),
            _ => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of [`write()`] for the element `e` of a text.
    fn written(text: &str) -> Option<String> {
        let document = document(text.as_bytes())?;
        let element = document.descendants().find(|node| node.tag_name().name() == "e")?;
        let mut out = Vec::new();
        write(element, usize::MAX, &mut out);
        Some(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn an_element_is_written_so_that_it_can_be_read_alone() {
        for (text, expected) in [
            ("<a xmlns='x'><e>1 &lt; 2</e></a>", "<n:e xmlns:n=\"x\">1 &lt; 2</n:e>"),
            ("<a xml:lang='de'><e/></a>", "<e xml:lang=\"de\"></e>"),
            (
                "<e><!-- c --><b xmlns='y' p:q='r' xmlns:p='z'>t</b>u</e>",
                "<e><n:b xmlns:n=\"y\" xmlns:a0=\"z\" a0:q=\"r\">t</n:b>u</e>",
            ),
            ("<e f='&#10;'>&#13;</e>", "<e f=\"&#10;\">&#13;</e>"),
        ] {
            assert_eq!(written(text).as_deref(), Some(expected), "{text}");
        }
        let deep = format!("<e>{}{}</e>", "<b>".repeat(2000), "</b>".repeat(2000));
        assert_eq!(written(&deep), Some(deep));
    }

    #[test]
    fn a_small_body_does_not_become_a_long_text() {
        let namespace = "x".repeat(1000);
        for text in [
            format!("<e xmlns:n='{namespace}'>{}</e>", "<n:b/>".repeat(1000)),
            format!(
                "<e xmlns:n='{namespace}' {}/>",
                (0..1000).map(|i| format!(" n:a{i}=''")).collect::<String>()
            ),
        ] {
            let document = document(text.as_bytes()).expect("XML");
            let mut out = Vec::new();
            write(document.root_element(), 5000, &mut out);
            assert!((5001..7000).contains(&out.len()), "{}", out.len());
            out.clear();
            write_inside(document.root_element(), 5000, &mut out);
            assert!(out.len() < 7000, "{}", out.len());
        }
    }

    #[test]
    fn element() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Some(first) = written(&format!("<e>{text}</e>")) {
                assert_eq!(written(&first).as_deref(), Some(first.as_str()), "{text}");
            }
        });
    }
}
