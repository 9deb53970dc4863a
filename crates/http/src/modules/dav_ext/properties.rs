//! PROPPATCH: properties that clients set on files (RFC 4918, section 9.2).
//!
//! All properties of a file are in one extended attribute. So a change is atomic, and a renamed
//! file keeps its properties.

use std::path::Path;

use bytes::Bytes;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use weir_log::Level;

use super::xml::{self, Name};
use super::{begin_multistatus, body, end_multistatus, file_of, parsed, respond, write_href};
use crate::files;
use crate::files::disk::{DiskError, on_disk, path as disk_path};
use crate::phases::Step;
use crate::request::Request;

/// The name of the extended attribute.
const ATTRIBUTE: &str = "user.weir.dav";
/// The maximum length of its value.
const LARGEST: usize = 16 * 1024;
/// The maximum total length of names and values in a request.
const MOST: usize = 64 * 1024;

/// A property, with its XML element as it is stored and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: Name,
    /// Its element.
    pub element: Vec<u8>,
}

/// A change of one property.
#[derive(Debug, PartialEq, Eq)]
enum PropertyChange {
    Set(Property),
    Remove(Name),
}

impl PropertyChange {
    fn name(&self) -> &Name {
        match self {
            PropertyChange::Set(property) => &property.name,
            PropertyChange::Remove(name) => name,
        }
    }

    /// Parses the changes of a body, in order. The error is the status of the answer: the body has
    /// no change or is too large. A value of more than [`LARGEST`] bytes is truncated, and a later
    /// check refuses it.
    fn read(body: &[u8]) -> Result<Vec<PropertyChange>, u16> {
        let document = xml::document(body).ok_or(400u16)?;
        let root = document.root_element();
        let (mut changes, mut size) = (Vec::new(), 0);
        for part in root.children().filter(|_| root.has_tag_name(("DAV:", "propertyupdate"))) {
            let sets = part.has_tag_name(("DAV:", "set"));
            if !sets && !part.has_tag_name(("DAV:", "remove")) {
                continue;
            }
            let props = part.children().filter(|node| node.has_tag_name(("DAV:", "prop")));
            for element in props.flat_map(|prop| prop.children()).filter(|n| n.is_element()) {
                let (name, mut text) = (Name::of(element), Vec::new());
                if sets {
                    xml::write(element, LARGEST, &mut text);
                }
                size += name.size() + text.len();
                if size > MOST {
                    return Err(507);
                }
                changes.push(if sets {
                    PropertyChange::Set(Property { name, element: text })
                } else {
                    PropertyChange::Remove(name)
                });
            }
        }
        if changes.is_empty() { Err(400) } else { Ok(changes) }
    }
}

/// Handles PROPPATCH.
pub async fn change(r: &mut Request) -> Step {
    match changed(r).await {
        Ok(answer) => respond(r, 207, Bytes::from(answer)),
        Err(step) => step,
    }
}

async fn changed(r: &mut Request) -> Result<Vec<u8>, Step> {
    let body = body(r).await?;
    let changes = match parsed(r, body, PropertyChange::read).await? {
        Ok(changes) => changes,
        Err(status) => {
            let text = match status {
                507 => "dav_ext: the body of PROPPATCH asks for too much",
                _ => "dav_ext: the body of PROPPATCH asks for no change",
            };
            r.log(Level::Error, format_args!("{text}"));
            return Err(Step::Status(status));
        }
    };
    let path = file_of(r).await?;
    if let Err(error) = files::stat(r, &path).await {
        error.log(r, Level::Error, &path);
        return Err(Step::Status(if error.is_absent() { 404 } else { 403 }));
    }
    // Clients cannot change any property of the namespace `DAV:`.
    let (own, others): (Vec<Name>, Vec<Name>) =
        changes.iter().map(|change| change.name().clone()).partition(|n| n.of_dav().is_some());
    let mut out = begin_multistatus();
    out.extend_from_slice(b"<D:response>\n");
    write_href(&r.path, &mut out);
    if own.is_empty() {
        let file = disk_path(&path);
        let done = on_disk(r, move |disk| {
            apply(&file, &changes).map_err(|error| {
                disk.properties_failed("change", &file, &error.into());
                failure(error)
            })
        });
        let status = done.await.map_or_else(DiskError::status, |()| 200);
        write_status(&others, status, "", &mut out);
    } else {
        let why = "<D:error><D:cannot-modify-protected-property/></D:error>\n";
        write_status(&own, 403, why, &mut out);
        write_status(&others, 424, "", &mut out);
    }
    out.extend_from_slice(b"</D:response>\n");
    end_multistatus(&mut out);
    Ok(out)
}

/// Writes a `propstat` element with these properties and a status.
pub fn write_status(names: &[Name], status: u16, why: &str, out: &mut Vec<u8>) {
    if names.is_empty() {
        return;
    }
    out.extend_from_slice(b"<D:propstat>\n<D:prop>");
    names.iter().for_each(|name| name.write(out));
    let text = match status {
        200 => "OK",
        403 => "Forbidden",
        404 => "Not Found",
        424 => "Failed Dependency",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    };
    let end =
        format!("</D:prop>\n<D:status>HTTP/1.1 {status} {text}</D:status>\n{why}</D:propstat>\n");
    out.extend_from_slice(end.as_bytes());
}

/// Maps an error of the extended attribute to the error of the method.
fn failure(error: Errno) -> DiskError {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE => DiskError::Full,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::OPNOTSUPP => DiskError::Denied,
        _ => DiskError::Failed,
    }
}

fn apply(path: &Path, changes: &[PropertyChange]) -> Result<(), Errno> {
    let mut all = read(path)?;
    for change in changes {
        all.retain(|property| property.name != *change.name());
        if let PropertyChange::Set(property) = change {
            all.push(property.clone());
        }
    }
    let text: Vec<u8> = all.into_iter().flat_map(|property| property.element).collect();
    match text.len() {
        0 => absent(removexattr(path, ATTRIBUTE)).map(|_| ()),
        _ if xml::declares_too_many(&text) => Err(Errno::TOOBIG),
        1..=LARGEST => setxattr(path, ATTRIBUTE, &text, XattrFlags::empty()),
        _ => Err(Errno::TOOBIG),
    }
}

/// Reads the properties of a file. Blocks.
pub fn read(path: &Path) -> Result<Vec<Property>, Errno> {
    Ok(stored(path)?.map_or_else(Vec::new, |text| parse(&text)))
}

/// Copies the stored properties of a file to another. Blocks.
pub fn carry(from: &Path, to: &Path) -> std::io::Result<()> {
    let carried = stored(from).and_then(|text| match text {
        Some(text) => setxattr(to, ATTRIBUTE, &text, XattrFlags::empty()),
        None => Ok(()),
    });
    Ok(carried?)
}

fn stored(path: &Path) -> Result<Option<Vec<u8>>, Errno> {
    let mut text = vec![0; LARGEST];
    let length = match absent(getxattr(path, ATTRIBUTE, &mut text[..])) {
        // The file system does not support extended attributes.
        Err(Errno::OPNOTSUPP) => None,
        found => found?,
    };
    Ok(length.map(|length| {
        text.truncate(length);
        text
    }))
}

/// Maps a missing attribute to `None`.
fn absent<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Err(Errno::NODATA) => Ok(None),
        found => found.map(Some),
    }
}

/// Parses stored properties. If another program has corrupted the text, there are none.
fn parse(text: &[u8]) -> Vec<Property> {
    let text = [b"<p>", text, b"</p>"].concat();
    let Some(document) = xml::document(&text) else { return Vec::new() };
    let elements = document.root_element().children().filter(|node| node.is_element());
    let property = |element| {
        let mut text = Vec::new();
        xml::write(element, MOST, &mut text);
        Property { name: Name::of(element), element: text }
    };
    elements.map(property).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, local: &str) -> Name {
        Name { namespace: namespace.to_owned(), local: local.to_owned() }
    }

    #[test]
    fn changes_are_read_in_their_order() {
        let text = "<D:propertyupdate xmlns:D='DAV:' xmlns='u'><D:set><D:prop><a>1</a></D:prop></D:set>\
                    <D:remove><D:prop><b/></D:prop></D:remove><D:set><D:prop xml:lang='de'><c/></D:prop></D:set>\
                    </D:propertyupdate>";
        let set = |local: &str, element: &str| {
            PropertyChange::Set(Property {
                name: name("u", local),
                element: element.as_bytes().to_vec(),
            })
        };
        let expected = [
            set("a", "<n:a xmlns:n=\"u\">1</n:a>"),
            PropertyChange::Remove(name("u", "b")),
            set("c", "<n:c xmlns:n=\"u\" xml:lang=\"de\"></n:c>"),
        ];
        assert_eq!(PropertyChange::read(text.as_bytes()).as_deref(), Ok(&expected[..]));
        for none in ["", "<a>", "<a/>", "<propertyupdate xmlns='DAV:'><set/></propertyupdate>"] {
            assert_eq!(PropertyChange::read(none.as_bytes()), Err(400), "{none}");
        }
    }

    #[test]
    fn a_long_namespace_does_not_exceed_the_limit_of_changes() {
        let of = |prop: &str| {
            let text = format!(
                "<propertyupdate xmlns='DAV:' xmlns:n='{}'><set><prop>{prop}</prop></set></propertyupdate>",
                "x".repeat(10_000)
            );
            PropertyChange::read(text.as_bytes())
        };
        assert_eq!(of(&"<n:a/>".repeat(3)).map(|changes| changes.len()), Ok(3));
        assert_eq!(of(&"<n:a/>".repeat(1000)), Err(507));
        let one = of(&format!("<a>{}</a>", "<n:b/>".repeat(1000))).unwrap();
        assert!(matches!(&one[..], [PropertyChange::Set(all)] if all.element.len() < 4 * LARGEST));
    }

    #[test]
    fn stored_properties_are_read_back() {
        let stored = b"<n:a xmlns:n=\"u\">1 &lt; 2</n:a><b></b>";
        let all = parse(stored);
        assert_eq!(
            all.iter().map(|p| &p.name).collect::<Vec<_>>(),
            [&name("u", "a"), &name("", "b")]
        );
        assert_eq!(all.into_iter().flat_map(|p| p.element).collect::<Vec<_>>(), stored);
        assert!(parse(b"no <XML").is_empty());
    }

    #[test]
    fn update() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for change in PropertyChange::read(bytes).into_iter().flatten() {
                if let PropertyChange::Set(property) = change
                    && property.element.len() <= LARGEST
                {
                    assert_eq!(parse(&property.element), [property]);
                }
            }
        });
    }
}
