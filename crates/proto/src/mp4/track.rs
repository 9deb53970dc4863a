//! A track's atoms, its tables taken apart.

use super::atom::{Atom, atoms, field_32, field_64};
use super::{Problem, TimeSpan, duration_place, put_duration};

/// A table with the version and flags before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullAtom<T> {
    pub flags: [u8; 4],
    pub entries: Vec<T>,
}

/// So many samples of this duration, or of this difference between decoding and showing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRun {
    pub count: u32,
    pub value: u32,
}

/// From this chunk on (counted from 1) chunks have so many samples, described by entry `id` of `stsd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    pub chunk: u32,
    pub samples: u32,
    pub id: u32,
}

/// How large samples are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All the same: size and number of samples.
    Uniform(u32, u32),
    /// Each its own.
    Each(Vec<u32>),
}

/// Where chunks begin in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    pub table: FullAtom<u64>,
    /// Offsets are of 64 bits: `co64`, not `stco`.
    pub wide: bool,
}

impl Chunks {
    /// Moves all chunks; offsets wrap, as they do where players add them up.
    pub fn shift(&mut self, by: u64) {
        self.table.entries.iter_mut().for_each(|offset| *offset = offset.wrapping_add(by));
    }
}

/// A track. What is not cut is kept as it is.
#[derive(Debug, Default)]
pub struct Track {
    pub tkhd: Option<Vec<u8>>,
    pub mdhd: Option<Vec<u8>>,
    pub hdlr: Option<Vec<u8>>,
    /// `vmhd` or `smhd`
    pub media: Option<([u8; 4], Vec<u8>)>,
    pub dinf: Option<Vec<u8>>,
    pub stsd: Option<Vec<u8>>,
    pub stts: Option<FullAtom<SampleRun>>,
    pub stss: Option<FullAtom<u32>>,
    pub ctts: Option<FullAtom<SampleRun>>,
    pub stsc: Option<FullAtom<ChunkRun>>,
    pub stsz: Option<(FullAtom<()>, Sizes)>,
    pub chunks: Option<Chunks>,
    /// The track's duration in the movie's units.
    pub movie_duration: u64,
    /// The same in its own.
    pub duration: u64,
    /// Units a second.
    pub timescale: u32,
}

/// The track ends before the span begins.
struct Outside;

enum Stop {
    Outside,
    Problem(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Stop {
        Stop::Problem(problem)
    }
}

impl From<Outside> for Stop {
    fn from(_: Outside) -> Stop {
        Stop::Outside
    }
}

impl Track {
    /// Reads a `trak`; `None` for one that ends before the span begins.
    pub fn read(body: &[u8], scale: u32, wanted: TimeSpan) -> Result<Option<Track>, Problem> {
        let mut track = Track::default();
        match track.read_all(body, scale, wanted) {
            Ok(()) => Ok(Some(track)),
            Err(Stop::Outside) => Ok(None),
            Err(Stop::Problem(problem)) => Err(problem),
        }
    }

    fn read_all(&mut self, body: &[u8], scale: u32, wanted: TimeSpan) -> Result<(), Stop> {
        for atom in atoms(body) {
            let atom = atom?;
            match &atom.name {
                b"tkhd" => self.track_header(atom.body, scale, wanted)?,
                b"mdia" => self.media(atom.body, wanted)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn track_header(&mut self, body: &[u8], scale: u32, wanted: TimeSpan) -> Result<(), Stop> {
        let (long, place) = duration_place(body, "tkhd", [84, 96], [20, 28])?;
        let (body, duration) = shortened(body, (long, place), scale, wanted)?;
        self.movie_duration = duration;
        Ok(keep(&mut self.tkhd, body, "tkhd")?)
    }

    fn media(&mut self, body: &[u8], wanted: TimeSpan) -> Result<(), Stop> {
        for atom in atoms(body) {
            let atom = atom?;
            match &atom.name {
                b"mdhd" => self.media_header(atom.body, wanted)?,
                b"hdlr" => keep(&mut self.hdlr, atom.body.to_vec(), "hdlr")?,
                b"minf" => self.media_information(atom.body)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn media_header(&mut self, body: &[u8], wanted: TimeSpan) -> Result<(), Stop> {
        let (long, place) = duration_place(body, "mdhd", [24, 36], [16, 24])?;
        self.timescale = field_32(body, if long { 20 } else { 12 });
        let (body, duration) = shortened(body, (long, place), self.timescale, wanted)?;
        self.duration = duration;
        Ok(keep(&mut self.mdhd, body, "mdhd")?)
    }

    fn media_information(&mut self, body: &[u8]) -> Result<(), Problem> {
        for atom in atoms(body) {
            let atom = atom?;
            match &atom.name {
                b"vmhd" | b"smhd" => {
                    keep(&mut self.media, (atom.name, atom.body.to_vec()), "vmhd/smhd")?;
                }
                b"dinf" => keep(&mut self.dinf, atom.body.to_vec(), "dinf")?,
                b"stbl" => self.sample_tables(atom.body)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn sample_tables(&mut self, body: &[u8]) -> Result<(), Problem> {
        for atom in atoms(body) {
            let atom = atom?;
            match &atom.name {
                b"stsd" if atom.body.len() < 16 => return Err(too_small("stsd")),
                b"stsd" => keep(&mut self.stsd, atom.body.to_vec(), "stsd")?,
                b"stts" => keep(&mut self.stts, table(atom, "stts", run)?, "stts")?,
                b"stss" => keep(&mut self.stss, table(atom, "stss", number)?, "stss")?,
                b"ctts" => keep(&mut self.ctts, table(atom, "ctts", run)?, "ctts")?,
                b"stsc" => keep(&mut self.stsc, table(atom, "stsc", chunk_run)?, "stsc")?,
                b"stsz" => keep(&mut self.stsz, sizes(atom.body)?, "stsz")?,
                b"stco" => {
                    let FullAtom { flags, entries } = table(atom, "stco", number)?;
                    let entries = entries.into_iter().map(u64::from).collect();
                    let table = FullAtom { flags, entries };
                    keep(&mut self.chunks, Chunks { table, wide: false }, "stco/co64")?;
                }
                b"co64" => {
                    let table = table(atom, "co64", |bytes: &[u8; 8]| u64::from_be_bytes(*bytes))?;
                    keep(&mut self.chunks, Chunks { table, wide: true }, "stco/co64")?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A header with the duration that is left of it.
fn shortened(
    body: &[u8],
    (long, place): (bool, usize),
    scale: u32,
    wanted: TimeSpan,
) -> Result<(Vec<u8>, u64), Outside> {
    let duration = if long { field_64(body, place) } else { field_32(body, place).into() };
    let left = duration.checked_sub(wanted.start_in(scale)).filter(|left| *left > 0);
    let left = wanted.at_most_length(left.ok_or(Outside)?, scale);
    let mut body = body.to_vec();
    put_duration(&mut body, long, place, left);
    Ok((body, left))
}

fn keep<T>(place: &mut Option<T>, value: T, name: &str) -> Result<(), Problem> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Problem::within(format!("duplicate mp4 {name} atom"))),
    }
}

fn too_small(name: &str) -> Problem {
    Problem::of(format!("mp4 {name} atom too small"))
}

/// Flags, the number of entries, and entries of `N` bytes.
fn table<const N: usize, T>(
    atom: Atom<'_>,
    name: &str,
    entry: impl Fn(&[u8; N]) -> T,
) -> Result<FullAtom<T>, Problem> {
    let small = || too_small(name);
    let (flags, rest) = atom.body.split_first_chunk::<4>().ok_or_else(small)?;
    let (count, rest) = rest.split_first_chunk::<4>().ok_or_else(small)?;
    let size = (u32::from_be_bytes(*count) as usize).checked_mul(N).ok_or_else(small)?;
    let bytes = rest.get(..size).ok_or_else(small)?;
    let entries = bytes.as_chunks::<N>().0.iter().map(entry).collect();
    Ok(FullAtom { flags: *flags, entries })
}

fn number(bytes: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*bytes)
}

fn run(bytes: &[u8; 8]) -> SampleRun {
    SampleRun { count: field_32(bytes, 0), value: field_32(bytes, 4) }
}

fn chunk_run(bytes: &[u8; 12]) -> ChunkRun {
    let field = |at| field_32(bytes, at);
    ChunkRun { chunk: field(0), samples: field(4), id: field(8) }
}

fn sizes(body: &[u8]) -> Result<(FullAtom<()>, Sizes), Problem> {
    let (head, _) = body.split_first_chunk::<12>().ok_or_else(|| too_small("stsz"))?;
    let (size, count) = (field_32(head, 4), field_32(head, 8));
    let flags = [head[0], head[1], head[2], head[3]];
    let head = FullAtom { flags, entries: Vec::new() };
    if size != 0 {
        return Ok((head, Sizes::Uniform(size, count)));
    }
    let bytes = (count as usize).checked_mul(4).and_then(|size| body.get(12..)?.get(..size));
    let bytes = bytes.ok_or_else(|| too_small("stsz"))?;
    Ok((head, Sizes::Each(bytes.as_chunks::<4>().0.iter().map(number).collect())))
}
