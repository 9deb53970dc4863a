//! Resizes, crops and rotates images, or describes them. nginx: ngx_http_image_filter_module.
//!
//! The head of the response depends on the whole image. So the module repeats the request as a
//! captured subrequest, changes the image on a thread of the file pool, and answers with the
//! result.

use std::fmt;

use bytes::Bytes;
use weir_conf::{Directive as Line, Error, Word};
use weir_engine::Boxed;
use weir_log::{Cause, Level};
use weir_proto::Renew;
use weir_values::Template;

use crate::answer::response::Response;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set, setting};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

mod picture;

use picture::{Angle, ImageAction, PictureFormat};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    filter: ImageFilter,
    /// `image_filter rotate` in addition to another line.
    angle: Option<Template>,
    jpeg_quality: Template,
    sharpen: Template,
    /// `image_filter_buffer`: the maximum length of an image.
    buffer: u64,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            filter: ImageFilter::Off,
            angle: None,
            jpeg_quality: Template::text(b"75"),
            sharpen: Template::EMPTY,
            buffer: 1 << 20,
        }
    }
}

impl Settings for Conf {}

/// `image_filter`
#[derive(Debug, Clone)]
enum ImageFilter {
    Off,
    /// Passes images unchanged, and refuses other types.
    Test,
    /// Answers with the dimensions.
    Size,
    Rotate,
    /// Widths and heights.
    Resize(Template, Template),
    Crop(Template, Template),
}

/// The maximum length of an image for `test`, which does not change it.
const TESTED: u64 = 32 << 20;

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "image_filter",
        help: "The action for images: `test`, `size`, `resize`, `crop`, `rotate`; or `off`.",
        set: Set::Simple(set),
    },
    Directive {
        name: "image_filter_jpeg_quality",
        help: "The quality of JPEG images that are written, 1 to 100; more is 100.",
        set: Set::Simple(|s, d| {
            number(s, d, |text| quality(text).is_some(), |conf| &mut conf.jpeg_quality)
        }),
    },
    Directive {
        name: "image_filter_sharpen",
        help: "How much images that are changed are sharpened, in percent, which may exceed 100.",
        set: Set::Simple(|s, d| number(s, d, |text| text != b"-", |conf| &mut conf.sharpen)),
    },
    setting!(
        "image_filter_buffer",
        CONF.buffer,
        Line::size,
        "The maximum size of an image; a larger one is refused with 415."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// Set once the answer is decided: a picture, what stands for one, or a refusal.
static DECIDED: ContextKey<()> = ContextKey::passing();

/// The module.
pub const MODULE: Module =
    Module { name: "http_image_filter", directives: DIRECTIVES, ..Module::NEW };

fn set(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    if s.first(d) {
        let conf = CONF.change(&mut s.location);
        (conf.filter, conf.angle) = (ImageFilter::Off, None);
    }
    let Some((word, more)) = d.args.split_first() else { return Ok(()) };
    let filter = match (word.bytes.as_slice(), more) {
        (b"off", []) => ImageFilter::Off,
        (b"test", []) => ImageFilter::Test,
        (b"size", []) => ImageFilter::Size,
        (b"rotate", [angle]) => {
            let value = s.setup.template(d, angle)?;
            if value.constant().is_some_and(|text| Angle::read(text).is_none()) {
                return Err(d.invalid("parameter", angle));
            }
            let conf = CONF.change(&mut s.location);
            conf.angle = Some(value);
            if !matches!(conf.filter, ImageFilter::Resize(..) | ImageFilter::Crop(..)) {
                conf.filter = ImageFilter::Rotate;
            }
            return Ok(());
        }
        (b"resize", [width, height]) => {
            ImageFilter::Resize(side(s, d, width)?, side(s, d, height)?)
        }
        (b"crop", [width, height]) => ImageFilter::Crop(side(s, d, width)?, side(s, d, height)?),
        _ => return Err(d.invalid("parameter", word)),
    };
    CONF.change(&mut s.location).filter = filter;
    Ok(())
}

fn side(s: &mut Scope<'_, '_>, d: &Line, word: &Word) -> Result<Template, Error> {
    let value = s.setup.template(d, word)?;
    if value.constant().is_some_and(|text| pixels(text).is_none()) {
        return Err(d.invalid("parameter", word));
    }
    Ok(value)
}

/// Reads a number. The last line of a block counts.
fn number(
    s: &mut Scope<'_, '_>,
    d: &Line,
    is_valid: fn(&[u8]) -> bool,
    setting: fn(&mut Conf) -> &mut Template,
) -> Result<(), Error> {
    let word = d.args.first().unwrap_or(&d.name);
    let value = s.setup.template(d, word)?;
    if value.constant().is_some_and(|text| !is_valid(text)) {
        return Err(d.invalid("value", word));
    }
    *setting(CONF.change(&mut s.location)) = value;
    Ok(())
}

/// A width or height in pixels. `-`: any.
fn pixels(text: &[u8]) -> Option<u32> {
    if text == b"-" { Some(u32::MAX) } else { positive(text) }
}

/// The quality of a JPEG image. As for the library that nginx uses, more than the best is the best.
fn quality(text: &[u8]) -> Option<u8> {
    positive(text).map(|n| n.min(100) as u8)
}

/// A number above 0. One that is too large for any use is the largest.
fn positive(text: &[u8]) -> Option<u32> {
    let n = weir_conf::values::number(text).filter(|n| *n > 0)?;
    Some(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !matches!(CONF.of(conf).filter, ImageFilter::Off)
}

/// Precontent phase.
pub fn handler(r: &mut Request) -> Answer<'_> {
    Answer::Later(Boxed::new(move || answer(r)))
}

/// Refuses answers of this location that [`handler`] has not seen: those of `return`, and of refused requests.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    if !r.is_main() || r.response.status == 304 || DECIDED.of(&r.contexts).is_some() {
        return Ok(());
    }
    DECIDED.set(&mut r.contexts, ());
    let conf = CONF.of(r.conf());
    Err(refuse(r, conf, "no picture"))
}

async fn answer(r: &mut Request) -> Step {
    DECIDED.set(&mut r.contexts, ());
    let conf = CONF.of(r.conf()).clone();
    let most = if matches!(conf.filter, ImageFilter::Test) { TESTED } else { conf.buffer };
    if let Err(error) = r.read_body().await {
        return error.into();
    }
    let Some(capture) = r.capture_again(most) else { return Step::Status(500) };
    let mut sub = Box::pin(capture.run()).await;
    let (status, whole) = (sub.response.status, sub.capture_is_whole());
    let is_elsewhere = !wanted(sub.conf());
    let picture = Bytes::from(sub.take_captured_body());
    take_head(r, std::mem::take(&mut sub.response));
    // `$upstream_...` show the servers of the subrequest.
    r.contexts.upstream = std::mem::take(&mut sub.contexts.upstream);
    drop(sub);
    if status == 304 {
        return Step::Respond(Bytes::new());
    }
    if !whole {
        return refuse(
            r,
            &conf,
            "the picture did not come, or has more bytes than \"image_filter_buffer\"",
        );
    }
    if is_elsewhere {
        // An error page, for example: its location has no `image_filter`.
        return Step::Respond(picture);
    }
    let Some(kind) = PictureFormat::of(&picture) else { return refuse(r, &conf, "no picture") };
    let action = match action(r, &conf) {
        Some(action) => action,
        None => return refuse(r, &conf, "invalid parameters for a picture"),
    };
    // As a write, it gets at most half of the pool's threads. The others are left for requests that
    // need a file.
    let done = r.event_loop.handle.files().write(move || match action {
        ImageAction::Pass => Ok((picture, None)),
        action => picture::change(&picture, kind, &action).map(|new| (picture, new)),
    });
    let (old, new) = match done.await {
        Ok(Ok(done)) => done,
        Ok(Err(why)) => return refuse(r, &conf, why),
        Err(error) => {
            r.log(Level::Crit, format_args!("the picture was not changed {}", Cause(&error)));
            return Step::Status(500);
        }
    };
    r.response.say_type(kind.mime().as_bytes());
    match new {
        None => Step::Respond(old),
        Some(text) if matches!(conf.filter, ImageFilter::Size) => describe(r, text.into()),
        Some(new) => {
            r.response.weaken_etag();
            Step::Respond(Bytes::from(new))
        }
    }
}

/// Takes over the head of the subrequest's response.
fn take_head(r: &mut Request, mut response: Response) {
    response.expect_changes();
    (response.sent, response.header_only, response.chunked) = (false, false, false);
    (response.head_bytes, response.expects_trailers) = (0, false);
    response.trailers = Default::default();
    *r.response = response;
}

/// The action for this request, from the values of variables. `None` if a value is invalid. Beside a
/// new size, another value than the three angles turns nothing.
fn action(r: &mut Request, conf: &Conf) -> Option<ImageAction> {
    let angle = conf.angle.as_ref().and_then(|angle| Angle::read(&angle.eval(r)));
    let mut size = |width: &Template, height: &Template| {
        Some((pixels(&width.eval(r))?, pixels(&height.eval(r))?))
    };
    let shape = match &conf.filter {
        ImageFilter::Off | ImageFilter::Test => return Some(ImageAction::Pass),
        ImageFilter::Size => return Some(ImageAction::Describe),
        ImageFilter::Rotate => {
            angle?;
            picture::Shape::Same
        }
        ImageFilter::Resize(width, height) => {
            let (width, height) = size(width, height)?;
            picture::Shape::Within(width, height)
        }
        ImageFilter::Crop(width, height) => {
            let (width, height) = size(width, height)?;
            picture::Shape::Cut(width, height)
        }
    };
    let angle = angle.unwrap_or(Angle::None);
    let quality = quality(&conf.jpeg_quality.eval(r));
    let sharpen = positive(&conf.sharpen.eval(r)).unwrap_or(0);
    Some(ImageAction::Change { shape, angle, quality, sharpen })
}

/// Answers with a description, without the headers of the picture.
fn describe(r: &mut Request, text: Bytes) -> Step {
    r.response.renew();
    (r.response.status, r.error_status) = (200, 0);
    r.response.say_type(b"application/json");
    Step::Respond(text)
}

fn refuse(r: &mut Request, conf: &Conf, why: impl fmt::Display) -> Step {
    if matches!(conf.filter, ImageFilter::Size) {
        return describe(r, Bytes::from_static(b"{}\r\n"));
    }
    r.response.renew();
    r.log(Level::Error, format_args!("image filter: {why}"));
    Step::Status(415)
}
