//! MP4 files: the part of the data for a span of time, and a `moov` atom that describes only that
//! part.
//!
//! A file is `ftyp`, `moov` (tables of samples for each track) and `mdat` (the samples), the last
//! two in any order. `cut` takes the tables apart (`track`) and keeps of each what lies in the span
//! (`span`). It puts together a `moov` for a file that is `ftyp`, `moov` and the wanted part of
//! `mdat`. Nothing here reads a file. Source: ISO/IEC 14496-12; nginx: ngx_http_mp4_module.

mod atom;
mod span;
mod track;
mod write;

pub use atom::{AtomHeader, header};

use std::ops::Range;

use atom::{atoms, field_32, field_64};
use span::CutTrack;
use track::Track;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpan {
    /// From this millisecond on.
    pub start: u64,
    /// For so many milliseconds; 0: to the end.
    pub length: u64,
    /// Begin at the key frame before `start`, and tell players to skip what is before it.
    pub key_frame: bool,
}

/// What is known of the file around its `moov`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// Length of the file.
    pub end: u64,
    /// Bytes that stand before the new `moov`: those of `ftyp`.
    pub before: u64,
    /// The content of `mdat`.
    pub data: Range<u64>,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The new `moov`, and the header of the new `mdat` behind it.
    pub head: Vec<u8>,
    /// What of the file follows it.
    pub data: Range<u64>,
}

/// Why a file cannot be cut. Shown with the file's name it is nginx's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// `"NAME" text`
    Of(String),
    /// `text in "NAME"`
    In(String),
}

impl Problem {
    fn of(text: impl Into<String>) -> Problem {
        Problem::Of(text.into())
    }

    fn within(text: impl Into<String>) -> Problem {
        Problem::In(text.into())
    }

    /// The text for the log.
    pub fn about(&self, name: &str) -> String {
        match self {
            Problem::Of(text) => format!("\"{name}\" {text}"),
            Problem::In(text) => format!("{text} in \"{name}\""),
        }
    }
}

/// Cuts the wanted part out, given the content of `moov`.
///
/// # Errors
///
/// The tables contradict themselves or the file, or nothing lies in the span.
pub fn cut(moov: &[u8], place: &FileLayout, wanted: TimeSpan) -> Result<Cut, Problem> {
    let (mvhd, tracks) = read(moov, wanted)?;
    if tracks.is_empty() {
        return Err(Problem::within("no mp4 trak atoms were found"));
    }
    let parts: Result<Vec<CutTrack>, _> =
        tracks.into_iter().map(|track| span::part(track, place, wanted)).collect();
    let mut parts = parts?;
    let start = parts.iter().map(|part| part.data.start).min().unwrap_or(place.end);
    let end = parts.iter().map(|part| part.data.end).max().unwrap_or(0);
    if end <= start {
        return Err(Problem::within("no data between start time and end time"));
    }
    if start >= place.data.end {
        return Err(Problem::within("start time is out mp4 mdat atom"));
    }
    // The tables' size does not depend on the offsets in them, so that it is known before they are moved.
    let mut head = write::moov(mvhd.as_deref(), &parts);
    let mdat = write::mdat_header(end - start);
    let moved = (place.before + (head.len() + mdat.len()) as u64).wrapping_sub(start);
    parts.iter_mut().for_each(|part| part.chunks.shift(moved));
    head = write::moov(mvhd.as_deref(), &parts);
    head.extend_from_slice(&mdat);
    Ok(Cut { head, data: start..end })
}

/// The movie's header with its new duration, and the tracks that reach into the span.
fn read(moov: &[u8], wanted: TimeSpan) -> Result<(Option<Vec<u8>>, Vec<Track>), Problem> {
    let (mut mvhd, mut timescale, mut tracks) = (None, 0, Vec::new());
    for atom in atoms(moov) {
        let atom = atom?;
        match &atom.name {
            b"mvhd" if mvhd.is_some() => return Err(Problem::within("duplicate mp4 mvhd atom")),
            b"mvhd" => {
                let (scale, body) = movie_header(atom.body, wanted)?;
                (timescale, mvhd) = (scale, Some(body));
            }
            b"trak" => tracks.extend(Track::read(atom.body, timescale, wanted)?),
            b"cmov" => {
                return Err(Problem::of("mp4 compressed moov atom (cmov) is not supported"));
            }
            _ => {}
        }
    }
    Ok((mvhd, tracks))
}

fn movie_header(body: &[u8], wanted: TimeSpan) -> Result<(u32, Vec<u8>), Problem> {
    let (long, place) = duration_place(body, "mvhd", [100, 112], [16, 24])?;
    let scale = field_32(body, if long { 20 } else { 12 });
    let duration = if long { field_64(body, place) } else { field_32(body, place).into() };
    let Some(left) = duration.checked_sub(wanted.start_in(scale)) else {
        return Err(Problem::of("mp4 start time exceeds file duration"));
    };
    let mut body = body.to_vec();
    put_duration(&mut body, long, place, wanted.at_most_length(left, scale));
    Ok((scale, body))
}

/// Whether times are of 64 bits (version 1), and where the duration stands; `sizes` are the least sizes of
/// both versions.
fn duration_place(
    body: &[u8],
    name: &str,
    sizes: [usize; 2],
    places: [usize; 2],
) -> Result<(bool, usize), Problem> {
    let long = body.first().is_some_and(|version| *version != 0);
    if body.len() < sizes[usize::from(long)] {
        return Err(Problem::of(format!("mp4 {name} atom too small")));
    }
    Ok((long, places[usize::from(long)]))
}

fn put_duration(body: &mut [u8], long: bool, place: usize, duration: u64) {
    if long {
        write::put_64(body, place, duration);
    } else {
        write::put_32(body, place, duration as u32);
    }
}

impl TimeSpan {
    /// The start in units of a time scale.
    fn start_in(&self, scale: u32) -> u64 {
        scaled(self.start, scale)
    }

    /// A duration, cut to what is wanted.
    fn at_most_length(&self, duration: u64, scale: u32) -> u64 {
        if self.length == 0 { duration } else { duration.min(scaled(self.length, scale)) }
    }
}

fn scaled(milliseconds: u64, scale: u32) -> u64 {
    u64::try_from(u128::from(milliseconds) * u128::from(scale) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
