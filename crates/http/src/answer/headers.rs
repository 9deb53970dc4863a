//! A list of header lines in one allocation.

use weir_proto::{Renew, as_new};
use weir_values::escape::within_name;

/// Names and values, in order, without an allocation for each.
#[derive(Debug, Default, Clone)]
pub struct Headers {
    text: Vec<u8>,
    lines: Vec<LineSpan>,
    /// A bit for each [`Place`] that is among the lines.
    places: u8,
}

#[derive(Debug, Clone, Copy)]
struct LineSpan {
    start: u32,
    name: u32,
    value: u32,
    place: Option<Place>,
}

/// Marks the place of a line whose value is in a field of [`Response`](crate::answer::response::Response).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Server,
    Date,
    Location,
    ETag,
    ContentEncoding,
}

/// A line, or the place of a line whose value is in a field of the answer.
#[derive(Debug, Clone, Copy)]
pub enum Line<'a> {
    /// Its name and value.
    Whole(&'a [u8], &'a [u8]),
    /// Its place and name.
    Placed(Place, &'a [u8]),
}

impl Headers {
    /// Adds a line behind the others.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        // Servers may use names that are no tokens. Bytes that would end the name or the line are replaced. Values are checked
        // when they are written.
        if name.iter().fold(false, |any, byte| any | ends_name(*byte)) {
            within_name(&mut self.text, start);
        }
        let name = self.text.len() - start;
        self.text.extend_from_slice(value);
        let (start, name, value) = (start as u32, name as u32, value.len() as u32);
        self.lines.push(LineSpan { start, name, value, place: None });
    }

    /// Marks the place behind the lines so far for a line with a field of its own, spelled like this, unless it has a place.
    pub fn mark(&mut self, place: Place, name: &[u8]) {
        if !self.has(place) {
            self.places |= 1 << place as u8;
            let (start, length) = (self.text.len() as u32, name.len() as u32);
            self.text.extend_from_slice(name);
            self.lines.push(LineSpan { start, name: length, value: 0, place: Some(place) });
        }
    }

    /// Whether this place is among the lines.
    pub fn has(&self, place: Place) -> bool {
        self.places & (1 << place as u8) != 0
    }

    /// Replaces all lines of this name by one. An empty value only removes them.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        if !value.is_empty() {
            self.add(name, value);
        }
    }

    /// Gives the first line of this name another value and removes the others. Without such a line it adds one.
    pub fn replace(&mut self, name: &[u8], value: &[u8]) {
        let text = &self.text;
        let is_line =
            |l: &LineSpan| l.place.is_none() && name_of(text, l).eq_ignore_ascii_case(name);
        let Some(first) = self.lines.iter().position(is_line) else {
            return self.add(name, value);
        };
        self.remove(name);
        self.add(name, value);
        self.lines[first..].rotate_right(1);
    }

    /// Removes all lines of this name.
    pub fn remove(&mut self, name: &[u8]) {
        let text = &self.text;
        let is_kept = |l: &LineSpan| !name_of(text, l).eq_ignore_ascii_case(name);
        self.lines.retain(|l| l.place.is_some() || is_kept(l));
    }

    /// Keeps the lines whose names `is_kept` accepts.
    pub fn retain(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let text = &self.text;
        self.lines.retain(|l| l.place.is_some() || is_kept(name_of(text, l)));
    }

    /// The first value of this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }

    /// All lines in order: name, value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.with_places().filter_map(|line| match line {
            Line::Whole(name, value) => Some((name, value)),
            Line::Placed(..) => None,
        })
    }

    /// All lines and places, in order.
    pub fn with_places(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|l| {
            let name = name_of(&self.text, l);
            match l.place {
                Some(place) => Line::Placed(place, name),
                None => {
                    let at = l.start as usize + l.name as usize;
                    Line::Whole(name, &self.text[at..at + l.value as usize])
                }
            }
        })
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl Renew for Headers {
    fn renew(&mut self) {
        as_new!(self, Headers { text, lines; places });
    }
}

fn ends_name(byte: u8) -> bool {
    byte <= b' ' || byte == b':' || byte == 0x7f
}

fn name_of<'a>(text: &'a [u8], line: &LineSpan) -> &'a [u8] {
    &text[line.start as usize..(line.start + line.name) as usize]
}
