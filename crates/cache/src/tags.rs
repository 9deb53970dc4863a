//! Tags of answers, by which many answers are purged at once: `Surrogate-Key`, `Cache-Tag` and
//! `xkey`, which mean the same, and the groups of RFC 9875, each of which belongs to one origin.

use md5::{Digest, Md5};

use crate::head::{Field, members};

/// The most tags of an answer.
pub const MOST_TAGS: usize = 1024;

/// A tag: the first bytes of the MD5 of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub(crate) [u8; 8]);

/// The tags of an answer, or of a purge.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tags {
    /// Sorted, without duplicates.
    pub all: Vec<Tag>,
    /// There are more than [`MOST_TAGS`], which are left out.
    pub more: bool,
}

/// The syntax of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Spaces,
    Commas,
    /// A list of strings (RFC 9651).
    Strings,
}

impl Tag {
    /// The tag with this name.
    pub fn named(name: &[u8]) -> Tag {
        Tag::of(&[b"tag", name])
    }

    /// The tag of a group of an origin.
    pub fn group(origin: &[u8], name: &[u8]) -> Tag {
        Tag::of(&[b"group", origin, name])
    }

    fn of(parts: &[&[u8]]) -> Tag {
        let mut hash = Md5::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let whole: [u8; 16] = hash.finalize().into();
        let mut tag = [0; 8];
        tag.copy_from_slice(whole.first_chunk::<8>().unwrap_or(&[0; 8]));
        Tag(tag)
    }
}

impl FromIterator<Tag> for Tags {
    fn from_iter<I: IntoIterator<Item = Tag>>(tags: I) -> Tags {
        Tags { all: tags.into_iter().collect(), more: false }.sorted()
    }
}

impl Tags {
    /// The tags in these fields. Groups belong to this origin.
    pub fn of<'a>(fields: impl Iterator<Item = Field<'a>>, origin: &[u8]) -> Tags {
        let mut this = Tags::default();
        for (name, value) in fields {
            match name.len() {
                4 if name.eq_ignore_ascii_case(b"xkey") => this.add(value, Syntax::Spaces, origin),
                9 if name.eq_ignore_ascii_case(b"cache-tag") => {
                    this.add(value, Syntax::Commas, origin);
                }
                12 if name.eq_ignore_ascii_case(b"cache-groups") => {
                    this.add(value, Syntax::Strings, origin);
                }
                13 if name.eq_ignore_ascii_case(b"surrogate-key") => {
                    this.add(value, Syntax::Spaces, origin);
                }
                _ => {}
            }
        }
        this.sorted()
    }

    /// The groups in values of `Cache-Group-Invalidation`, which belong to this origin.
    pub fn groups<'a>(values: impl Iterator<Item = &'a [u8]>, origin: &[u8]) -> Tags {
        let mut this = Tags::default();
        values.for_each(|value| this.add(value, Syntax::Strings, origin));
        this.sorted()
    }

    /// Whether `others` has one of these tags.
    pub fn meets(&self, others: &Tags) -> bool {
        self.all.iter().any(|tag| others.all.binary_search(tag).is_ok())
    }

    fn add(&mut self, value: &[u8], syntax: Syntax, origin: &[u8]) {
        let mut push = |tag: Tag| match self.all.len() < MOST_TAGS {
            true => self.all.push(tag),
            false => self.more = true,
        };
        match syntax {
            Syntax::Spaces => {
                let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                words.take(MOST_TAGS + 1).map(Tag::named).for_each(&mut push);
            }
            Syntax::Commas => {
                let words = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
                let words = words.filter(|word| !word.is_empty());
                words.take(MOST_TAGS + 1).map(Tag::named).for_each(&mut push);
            }
            Syntax::Strings => {
                let names = members(value).take(MOST_TAGS + 1).filter_map(string);
                names.map(|name| Tag::group(origin, &name)).for_each(&mut push);
            }
        }
    }

    fn sorted(mut self) -> Tags {
        self.all.sort_unstable();
        self.all.dedup();
        self
    }
}

/// Parses a string without its quotes. Parameters may follow it.
fn string(member: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = member.strip_prefix(b"\"")?.iter();
    let mut out = Vec::new();
    loop {
        match bytes.next()? {
            b'"' => return matches!(bytes.next(), None | Some(b';' | b' ')).then_some(out),
            b'\\' => out.push(*bytes.next()?),
            byte => out.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::fields;
    use proptest::prelude::*;

    fn of(head: &str) -> Tags {
        Tags::of(fields(head.as_bytes()), b"http://a")
    }

    fn named(names: &[&str]) -> Vec<Tag> {
        let mut all: Vec<Tag> = names.iter().map(|name| Tag::named(name.as_bytes())).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn each_field_lists_tags_in_its_own_way() {
        assert_eq!(
            of("Surrogate-Key: a  b\r\nxkey: c\r\nXKey: a\r\n\r\n").all,
            named(&["a", "b", "c"])
        );
        assert_eq!(of("Cache-Tag: a b, c,,\r\n\r\n").all, named(&["a b", "c"]));
        let groups = of("Cache-Groups: \"a, b\", \"c\\\"\";x=1, d\r\n\r\n");
        let mut expected = vec![Tag::group(b"http://a", b"a, b"), Tag::group(b"http://a", b"c\"")];
        expected.sort_unstable();
        assert_eq!(groups.all, expected);
        assert_ne!(Tag::group(b"http://a", b"x"), Tag::group(b"http://b", b"x"));
        assert_ne!(Tag::group(b"", b"x"), Tag::named(b"x"));
    }

    #[test]
    fn tags_without_end_are_not_all_read() {
        let tags = of(&format!("xkey: {}\r\n\r\n", "a b c ".repeat(10_000)));
        assert!(tags.more && tags.all.len() <= MOST_TAGS);
        let many: String = (0..2000).map(|n| format!("\"{n}\",")).collect();
        assert!(of(&format!("Cache-Groups: {many}\r\n\r\n")).more);
    }

    proptest! {
        #[test]
        fn any_value_is_read(value in prop::collection::vec(any::<u8>(), 0..60)) {
            for name in ["Surrogate-Key", "Cache-Tag", "xkey", "Cache-Groups"] {
                let tags = Tags::of([(name.as_bytes(), value.as_slice())].into_iter(), b"");
                prop_assert!(tags.all.is_sorted() && !tags.more);
            }
        }
    }
}
