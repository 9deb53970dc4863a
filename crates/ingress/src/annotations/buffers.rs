//! The sizes of buffers and temporary files for answers, which limit each other.

use super::Reader;
use super::options::Options;

/// The size of `proxy_buffer_size`, unless an annotation sets it.
const BUFFER: u64 = 4096;

/// Sets the sizes of buffers together, since they limit each other.
pub(super) fn read(r: &Reader<'_>, o: &mut Options) {
    let size = r.size("proxy-buffer-size", 512, 4 << 20);
    let number = r.number("proxy-buffers-number", 2, 1024);
    let busy = r.size("proxy-busy-buffers-size", 512, 64 << 20);
    if size.is_none() && number.is_none() && busy.is_none() {
        return;
    }
    let size: u64 = size.and_then(|s| s.parse().ok()).unwrap_or(BUFFER);
    let number = number.unwrap_or(4);
    if size.saturating_mul(number) > 64 << 20 {
        r.wrong(
            "proxy-buffers-number",
            "the buffers of a request would have more than 64 megabytes",
        );
        return;
    }
    let most = size * (number - 1);
    let wanted = busy.and_then(|busy| busy.parse::<u64>().ok());
    if wanted.is_some_and(|busy| !(size..=most).contains(&busy)) {
        r.wrong("proxy-busy-buffers-size", format!("it must be between {size} and {most} bytes"));
    }
    let busy = wanted.filter(|busy| (size..=most).contains(busy)).unwrap_or(most.min(2 * size));
    o.simple.push(("proxy_buffer_size", vec![size.to_string()]));
    o.simple.push(("proxy_buffers", vec![number.to_string(), size.to_string()]));
    o.simple.push(("proxy_busy_buffers_size", vec![busy.to_string()]));
}

/// Leaves out a limit of temporary files that is less than a buffer. weir refuses it without the
/// line, so the Ingress would have to be looked for.
pub(super) fn check_files(r: &Reader<'_>, o: &mut Options) {
    let number = |(_, words): &(_, Vec<String>)| words.first()?.parse::<u64>().ok();
    let of = |wanted: &str| o.simple.iter().find(|(name, _)| *name == wanted).and_then(number);
    let buffer = of("proxy_buffer_size").unwrap_or(BUFFER);
    if of("proxy_max_temp_file_size").is_some_and(|most| most != 0 && most < buffer) {
        let why = format!("it must be 0, or a buffer of {buffer} bytes at least");
        r.wrong("proxy-max-temp-file-size", why);
        o.simple.retain(|(name, _)| *name != "proxy_max_temp_file_size");
    }
}
