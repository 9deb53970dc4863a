//! The part of a track in a span of time: first in samples, then in chunks, then in bytes.

use std::ops::Range;

use super::track::{ChunkRun, Chunks, FullAtom, SampleRun, Sizes, Track};
use super::{FileLayout, Problem, TimeSpan, put_duration};

/// The part of a track that lies in the span: its tables are cut, except for the offsets' last move.
#[derive(Debug)]
pub struct CutTrack {
    /// The track; its tables are the part's.
    pub track: Track,
    /// How much of the beginning is only there since it leads up to the start: in the track's units.
    pub prefix: u64,
    /// The offsets of the part's chunks, still those of the file.
    pub chunks: Chunks,
    /// Which bytes of the file it needs.
    pub data: Range<u64>,
}

/// Cuts a track.
pub fn part(mut track: Track, place: &FileLayout, wanted: TimeSpan) -> Result<CutTrack, Problem> {
    let (samples, prefix) = cut_times(&mut track, wanted)?;
    cut_key_frames(&mut track, &samples);
    cut_differences(&mut track, &samples);
    let chunks = track.chunks.take().ok_or_else(|| missing("stco"))?;
    let ends = find_chunks(&track, &chunks, &samples)?;
    let skipped = cut_sizes(&mut track, &samples, &ends)?;
    let (chunks, data) = cut_chunks(chunks, place, &ends, skipped)?;
    cut_chunk_runs(&mut track, &ends);
    if prefix > 0 {
        track.duration = track.duration.saturating_add(prefix);
    }
    let duration = track.duration;
    if let Some(mdhd) = &mut track.mdhd {
        let long = mdhd.first().is_some_and(|version| *version != 0);
        put_duration(mdhd, long, if long { 24 } else { 16 }, duration);
    }
    Ok(CutTrack { track, prefix, chunks, data })
}

fn missing(name: &str) -> Problem {
    Problem::within(format!("no mp4 {name} atoms were found"))
}

/// The samples of a part.
#[derive(Debug)]
struct Samples {
    start: u64,
    /// Behind the last; none: to the end of the track.
    end: Option<u64>,
}

/// Cuts `stts`, and says which samples are left.
fn cut_times(track: &mut Track, wanted: TimeSpan) -> Result<(Samples, u64), Problem> {
    let stts = track.stts.as_mut().ok_or_else(|| missing("stts"))?;
    let time = wanted.start_in(track.timescale);
    let Some(mut start) = sample_at(&stts.entries, time) else {
        return Err(Problem::within("start time is out mp4 stts samples"));
    };
    let mut prefix = 0;
    if wanted.key_frame
        && let Some(stss) = &track.stss
    {
        let key = key_frame_before(stss, start)?;
        prefix = duration_of(&stts.entries, key..start);
        start = key;
    }
    skip(&mut stts.entries, start);
    let end = (wanted.length > 0).then(|| {
        let until = super::scaled(wanted.length, track.timescale).saturating_add(prefix);
        let count = sample_at(&stts.entries, until).unwrap_or_else(|| total(&stts.entries));
        truncate(&mut stts.entries, count);
        start + count
    });
    Ok((Samples { start, end }, prefix))
}

/// The sample that is shown at a time, counted from 0.
fn sample_at(runs: &[SampleRun], time: u64) -> Option<u64> {
    let (mut left, mut sample) = (time, 0u64);
    for run in runs {
        let whole = u64::from(run.count) * u64::from(run.value);
        if left < whole {
            return Some(sample + left / u64::from(run.value));
        }
        left -= whole;
        sample += u64::from(run.count);
    }
    None
}

/// The last key frame at or before a sample; the sample itself where there is none.
fn key_frame_before(stss: &FullAtom<u32>, sample: u64) -> Result<u64, Problem> {
    let mut found = sample;
    for &key in &stss.entries {
        // Key frames are counted from 1.
        let Some(key) = u64::from(key).checked_sub(1) else {
            return Err(Problem::within("zero sync sample"));
        };
        if key > sample {
            break;
        }
        found = key;
    }
    Ok(found)
}

fn duration_of(runs: &[SampleRun], samples: Range<u64>) -> u64 {
    let (mut at, mut duration) = (0u64, 0u64);
    for run in runs {
        let next = at + u64::from(run.count);
        let count = next.min(samples.end).saturating_sub(at.max(samples.start));
        duration = duration.saturating_add(count.saturating_mul(run.value.into()));
        at = next;
    }
    duration
}

fn total(runs: &[SampleRun]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// Drops the first `count` of what the runs count.
fn skip(runs: &mut Vec<SampleRun>, mut count: u64) {
    let whole = runs.iter().take_while(|run| match count.checked_sub(run.count.into()) {
        Some(left) => {
            count = left;
            true
        }
        None => false,
    });
    let whole = whole.count();
    runs.drain(..whole);
    if let Some(first) = runs.first_mut() {
        first.count -= count as u32;
    }
}

/// Keeps the first `count` of what the runs count.
fn truncate(runs: &mut Vec<SampleRun>, mut count: u64) {
    for run in runs.iter_mut() {
        run.count = u64::from(run.count).min(count) as u32;
        count -= u64::from(run.count);
    }
    runs.retain(|run| run.count > 0);
}

/// Cuts `stss`.
fn cut_key_frames(track: &mut Track, samples: &Samples) {
    let Some(stss) = &mut track.stss else { return };
    let end = samples.end.unwrap_or(u64::MAX);
    stss.entries
        .retain(|key| (samples.start + 1..end.saturating_add(1)).contains(&u64::from(*key)));
    stss.entries.iter_mut().for_each(|key| *key -= samples.start as u32);
}

/// Cuts `ctts`.
fn cut_differences(track: &mut Track, samples: &Samples) {
    let Some(ctts) = &mut track.ctts else { return };
    skip(&mut ctts.entries, samples.start);
    if let Some(end) = samples.end {
        truncate(&mut ctts.entries, end - samples.start);
    }
    if ctts.entries.is_empty() {
        track.ctts = None;
    }
}

/// A sample's place: its chunk, counted from 0, and its number there.
#[derive(Clone, Copy, Debug)]
struct Spot {
    chunk: u64,
    within: u64,
}

/// The first and the last sample of a part.
#[derive(Debug)]
struct Ends {
    first: Spot,
    /// None: to the end of the track.
    last: Option<Spot>,
    /// There is no sample in the span.
    empty: bool,
    chunks: u64,
}

fn find_chunks(track: &Track, chunks: &Chunks, samples: &Samples) -> Result<Ends, Problem> {
    let stsc = track.stsc.as_ref().ok_or_else(|| missing("stsc"))?;
    if stsc.entries.is_empty() {
        return Err(Problem::within("zero number of entries in stsc atom"));
    }
    let count = chunks.table.entries.len() as u64;
    let first = spot(&stsc.entries, count, samples.start, "start")?;
    let empty = samples.end.is_some_and(|end| end <= samples.start);
    let last = match samples.end {
        Some(end) if !empty => Some(spot(&stsc.entries, count, end - 1, "end")?),
        _ => None,
    };
    Ok(Ends { first, last, empty, chunks: count })
}

/// Which chunk a sample is in. The one behind the last counts as the start of a chunk that is not there.
fn spot(runs: &[ChunkRun], chunks: u64, sample: u64, which: &str) -> Result<Spot, Problem> {
    let mut left = sample;
    for (i, run) in runs.iter().enumerate() {
        let next = runs.get(i + 1).map(|next| u64::from(next.chunk));
        let is_last = next.is_none();
        let (from, next) = (u64::from(run.chunk), next.unwrap_or(chunks + 1));
        let Some(length) = next.checked_sub(from) else {
            return Err(Problem::within("unordered mp4 stsc chunks"));
        };
        let whole = length.saturating_mul(run.samples.into());
        if left < whole || (is_last && left == whole) {
            if run.samples == 0 {
                return Err(Problem::within("zero number of samples"));
            }
            let Some(from) = from.checked_sub(1) else {
                return Err(Problem::within("zero chunk"));
            };
            let samples = u64::from(run.samples);
            return Ok(Spot { chunk: from + left / samples, within: left % samples });
        }
        left -= whole;
    }
    Err(Problem::within(format!("{which} time is out mp4 stsc chunks")))
}

/// Cuts `stsz`; the answer is how many bytes of the first chunk are left out, and how many of the last chunk
/// are kept.
fn cut_sizes(track: &mut Track, samples: &Samples, ends: &Ends) -> Result<[u64; 2], Problem> {
    let Some((_, sizes)) = &mut track.stsz else { return Ok([0, 0]) };
    let count = match sizes {
        Sizes::Uniform(_, count) => u64::from(*count),
        Sizes::Each(each) => each.len() as u64,
    };
    if samples.start >= count {
        return Err(Problem::within("start time is out mp4 stsz samples"));
    }
    let end = samples.end.unwrap_or(count);
    if end > count {
        return Err(Problem::within("end time is out mp4 stsz samples"));
    }
    let before = samples.start.saturating_sub(ends.first.within)..samples.start;
    let skipped = bytes(sizes, before);
    let kept = ends.last.map_or(0, |last| bytes(sizes, (end - 1).saturating_sub(last.within)..end));
    match sizes {
        Sizes::Uniform(_, count) => *count = (end - samples.start) as u32,
        Sizes::Each(each) => {
            each.truncate(end as usize);
            each.drain(..(samples.start as usize).min(each.len()));
        }
    }
    Ok([skipped, kept])
}

fn bytes(sizes: &Sizes, samples: Range<u64>) -> u64 {
    match sizes {
        Sizes::Uniform(size, _) => {
            samples.end.saturating_sub(samples.start).saturating_mul((*size).into())
        }
        Sizes::Each(each) => {
            let part = each.get(samples.start as usize..samples.end as usize);
            part.unwrap_or_default().iter().map(|size| u64::from(*size)).sum()
        }
    }
}

/// Cuts `stco` or `co64`; says which bytes of the file the part needs.
fn cut_chunks(
    mut chunks: Chunks,
    place: &FileLayout,
    ends: &Ends,
    [skipped, kept]: [u64; 2],
) -> Result<(Chunks, Range<u64>), Problem> {
    let name = if chunks.wide { "co64" } else { "stco" };
    let out = |what: &str| Problem::within(format!("{what} time is out mp4 {name} chunks"));
    let wide = chunks.wide;
    let behind = |offset: u64, size: u64| {
        let end = offset.checked_add(size).filter(|end| *end <= place.end);
        let end = end.filter(|end| wide || *end <= u32::MAX.into());
        end.ok_or_else(|| Problem::within("too large chunk offset"))
    };
    let offsets = &mut chunks.table.entries;
    if ends.first.chunk >= ends.chunks {
        return Err(out("start"));
    }
    let end = match ends.last {
        None => place.data.end,
        Some(last) => {
            let offset = offsets.get(last.chunk as usize).ok_or_else(|| out("end"))?;
            behind(*offset, kept)?
        }
    };
    offsets.truncate(ends.last.map_or(offsets.len(), |last| last.chunk as usize + 1));
    offsets.drain(..(ends.first.chunk as usize).min(offsets.len()));
    let Some(first) = offsets.first_mut() else { return Err(out("start")) };
    *first = behind(*first, skipped)?;
    let data = *first..end;
    if ends.empty {
        offsets.clear();
        return Ok((chunks, place.end..0));
    }
    Ok((chunks, data))
}

/// Cuts `stsc`: runs of the chunks that are left, the first and the last of them shortened.
fn cut_chunk_runs(track: &mut Track, ends: &Ends) {
    let Some(stsc) = &mut track.stsc else { return };
    let runs = std::mem::take(&mut stsc.entries);
    if ends.empty {
        return;
    }
    let (first, end) = (ends.first.chunk, ends.last.map_or(ends.chunks, |last| last.chunk + 1));
    let mut push = |chunk: u64, samples: u64, id: u32| {
        let (chunk, samples) = ((chunk - first + 1) as u32, samples as u32);
        let same = stsc.entries.last().is_some_and(|run| (run.samples, run.id) == (samples, id));
        if !same {
            stsc.entries.push(ChunkRun { chunk, samples, id });
        }
    };
    for (i, run) in runs.iter().enumerate() {
        let next =
            runs.get(i + 1).map_or(ends.chunks, |next| u64::from(next.chunk).saturating_sub(1));
        let from = u64::from(run.chunk).saturating_sub(1).max(first);
        let to = next.min(end);
        // At most three runs come of one: its first chunk, those between, and its last.
        for (start, stop) in
            [(from, from + 1), (from + 1, to.saturating_sub(1)), (to.max(from + 2) - 1, to)]
        {
            if start >= stop.min(to) || start < from {
                continue;
            }
            let mut samples = u64::from(run.samples);
            if let Some(last) = ends.last.filter(|last| last.chunk == start) {
                samples = last.within + 1;
            }
            if start == first {
                samples = samples.saturating_sub(ends.first.within);
            }
            push(start, samples, run.id);
        }
    }
}
