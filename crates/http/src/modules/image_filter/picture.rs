//! Formats and dimensions of images, and their changes. Changes take long, so they never run on a
//! loop.

use std::fmt;
use std::io::Cursor;

use image::codecs::{gif::GifEncoder, jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder};
use image::imageops::FilterType;
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits};

/// The most pixels of an image, which take 100 MB while it is changed. A small file may claim more.
pub const PIXELS: u64 = 25_000_000;
/// The most memory for a decoder.
const MEMORY: u64 = 256 << 20;

/// The format of an image, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    Jpeg,
    Gif,
    Png,
    Webp,
}

impl PictureFormat {
    /// `None` if this is not an image.
    pub fn of(bytes: &[u8]) -> Option<PictureFormat> {
        match bytes {
            [0xff, 0xd8, _, _, ..] => Some(PictureFormat::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(PictureFormat::Gif),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(PictureFormat::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                Some(PictureFormat::Webp)
            }
            _ => None,
        }
    }

    fn format(self) -> ImageFormat {
        match self {
            PictureFormat::Jpeg => ImageFormat::Jpeg,
            PictureFormat::Gif => ImageFormat::Gif,
            PictureFormat::Png => ImageFormat::Png,
            PictureFormat::Webp => ImageFormat::WebP,
        }
    }

    /// `Content-Type`
    pub fn mime(self) -> &'static str {
        self.format().to_mime_type()
    }

    fn name(self) -> &'static str {
        match self {
            PictureFormat::Jpeg => "jpeg",
            PictureFormat::Gif => "gif",
            PictureFormat::Png => "png",
            PictureFormat::Webp => "webp",
        }
    }
}

/// The angle of a rotation, counterclockwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Angle {
    None,
    Quarter,
    Half,
    ThreeQuarters,
}

impl Angle {
    /// `90`, `180`, `270`
    pub fn read(text: &[u8]) -> Option<Angle> {
        match weir_conf::values::number(text) {
            Some(90) => Some(Angle::Quarter),
            Some(180) => Some(Angle::Half),
            Some(270) => Some(Angle::ThreeQuarters),
            _ => None,
        }
    }
}

/// The size of the result. No image is enlarged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Same,
    /// At most this wide and high. The proportions stay.
    Within(u32, u32),
    /// Scaled down so that one side fits. The middle of the other side is kept.
    Cut(u32, u32),
}

/// What to do with an image.
#[derive(Debug, Clone, Copy)]
pub enum ImageAction {
    Pass,
    Describe,
    Change {
        shape: Shape,
        angle: Angle,
        /// For JPEG alone; `None` if it is invalid.
        quality: Option<u8>,
        sharpen: u32,
    },
}

/// Why an image is not changed, for the log.
#[derive(Debug)]
pub enum PictureError {
    /// The image cannot be decoded or encoded.
    Image(ImageError),
    /// The image has more than [`PIXELS`] pixels: width and height.
    TooManyPixels(u32, u32),
    /// The quality of the image that is written is invalid.
    Quality,
}

impl From<ImageError> for PictureError {
    fn from(error: ImageError) -> PictureError {
        PictureError::Image(error)
    }
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PictureError::Image(error) => error.fmt(f),
            PictureError::TooManyPixels(width, height) => {
                write!(f, "too many pixels: {width} x {height}")
            }
            PictureError::Quality => f.write_str("invalid quality"),
        }
    }
}

/// The new image or the description. `None` if the image stays as it is.
pub fn change(
    bytes: &[u8],
    kind: PictureFormat,
    action: &ImageAction,
) -> Result<Option<Vec<u8>>, PictureError> {
    let (width, height) = reader(bytes, kind).into_dimensions()?;
    let (shape, angle, quality, sharpen) = match *action {
        ImageAction::Pass => return Ok(None),
        ImageAction::Describe => {
            let name = kind.name();
            let text = format!(
                "{{ \"img\" : {{ \"width\": {width}, \"height\": {height}, \"type\": \"{name}\" }} }}\r\n"
            );
            return Ok(Some(text.into_bytes()));
        }
        ImageAction::Change { shape, angle, quality, sharpen } => (shape, angle, quality, sharpen),
    };
    let fits = match shape {
        Shape::Same => false,
        Shape::Within(w, h) | Shape::Cut(w, h) => width <= w && height <= h,
    };
    if fits && angle == Angle::None && !is_full_of_metadata(bytes, kind) {
        return Ok(None);
    }
    if u64::from(width) * u64::from(height) > PIXELS {
        return Err(PictureError::TooManyPixels(width, height));
    }
    let mut picture = reader(bytes, kind).decode()?;
    let (w, h) = scaled((width, height), shape);
    if (w, h) != (width, height) {
        picture = picture.resize_exact(w, h, FilterType::Triangle);
    }
    picture = match angle {
        Angle::None => picture,
        Angle::Quarter => picture.rotate270(),
        Angle::Half => picture.rotate180(),
        Angle::ThreeQuarters => picture.rotate90(),
    };
    if let Shape::Cut(w, h) = shape {
        let (w, h) = (w.min(picture.width()), h.min(picture.height()));
        let (x, y) = ((picture.width() - w) / 2, (picture.height() - h) / 2);
        picture = picture.crop_imm(x, y, w, h);
    }
    if sharpen > 0 {
        picture = sharpened(&picture, sharpen);
    }
    written(picture, kind, quality).map(Some)
}

/// Whether more than a twentieth of a JPEG image is data of applications (EXIF and others). As in
/// nginx, such an image is written anew even if it keeps its size, so that it loses them.
fn is_full_of_metadata(bytes: &[u8], kind: PictureFormat) -> bool {
    const START_OF_SCAN: u8 = 0xda;
    if kind != PictureFormat::Jpeg {
        return false;
    }
    let (mut rest, mut metadata) = (bytes.get(2..).unwrap_or_default(), 0);
    while let [0xff, marker, high, low, ..] = *rest {
        if marker == START_OF_SCAN {
            break;
        }
        if marker == 0xff {
            // A byte that fills up.
            rest = &rest[1..];
            continue;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if (0xe1..=0xef).contains(&marker) {
            metadata += length;
        }
        rest = rest.get(2 + length..).unwrap_or_default();
    }
    bytes.len() / 20 < metadata
}

fn reader(bytes: &[u8], kind: PictureFormat) -> ImageReader<Cursor<&[u8]>> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), kind.format());
    let mut limits = Limits::default();
    limits.max_alloc = Some(MEMORY);
    reader.limits(limits);
    reader
}

/// The size before the image is cropped.
fn scaled((width, height): (u32, u32), shape: Shape) -> (u32, u32) {
    let part = |side: u32, by: u32, of: u32| {
        let side = u64::from(side) * u64::from(by) / u64::from(of.max(1));
        u32::try_from(side).unwrap_or(u32::MAX).max(1)
    };
    let narrower = |to: u32| (to, part(height, to, width));
    let lower = |to: u32| (part(width, to, height), to);
    match shape {
        Shape::Same => (width, height),
        Shape::Within(w, h) => {
            let (width, height) = if width > w { narrower(w) } else { (width, height) };
            if height > h { (part(width, h, height), h) } else { (width, height) }
        }
        Shape::Cut(w, h) => {
            // Whether the image is narrower, in proportion, than the requested size.
            let slim = u64::from(width) * u64::from(h) < u64::from(w) * u64::from(height);
            match slim {
                true if width > w => narrower(w),
                false if height > h => lower(h),
                _ => (width, height),
            }
        }
    }
}

fn sharpened(picture: &DynamicImage, percent: u32) -> DynamicImage {
    let outer = -(percent as f32) / 400.0;
    let inner = 1.0 - 4.0 * outer;
    picture.filter3x3(&[0.0, outer, 0.0, outer, inner, outer, 0.0, outer, 0.0])
}

fn written(
    picture: DynamicImage,
    kind: PictureFormat,
    quality: Option<u8>,
) -> Result<Vec<u8>, PictureError> {
    let mut out = Vec::new();
    match kind {
        PictureFormat::Jpeg => {
            let quality = quality.ok_or(PictureError::Quality)?;
            DynamicImage::from(picture.to_rgb8())
                .write_with_encoder(JpegEncoder::new_with_quality(&mut out, quality))?;
        }
        PictureFormat::Png => picture.write_with_encoder(PngEncoder::new(&mut out))?,
        PictureFormat::Gif => {
            let (width, height) = (picture.width(), picture.height());
            GifEncoder::new_with_speed(&mut out, 10).encode(
                &picture.to_rgba8(),
                width,
                height,
                image::ExtendedColorType::Rgba8,
            )?;
        }
        PictureFormat::Webp => {
            DynamicImage::from(picture.to_rgba8())
                .write_with_encoder(WebPEncoder::new_lossless(&mut out))?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(kind: PictureFormat, width: u32, height: u32) -> Vec<u8> {
        let paint = |x: u32, y: u32| image::Rgb([x as u8, y as u8, 99]);
        written(DynamicImage::from(image::RgbImage::from_fn(width, height, paint)), kind, Some(90))
            .unwrap()
    }

    fn size(bytes: &[u8], kind: PictureFormat) -> (u32, u32) {
        reader(bytes, kind).into_dimensions().unwrap()
    }

    const KINDS: [PictureFormat; 4] =
        [PictureFormat::Jpeg, PictureFormat::Gif, PictureFormat::Png, PictureFormat::Webp];

    #[test]
    fn each_format_is_detected_and_changed() {
        let (angle, quality, sharpen) = (Angle::None, Some(75), 10);
        for kind in KINDS {
            let old = picture(kind, 40, 20);
            assert_eq!(PictureFormat::of(&old), Some(kind));
            for (shape, angle, expected) in [
                (Shape::Within(20, 20), angle, (20, 10)),
                (Shape::Within(u32::MAX, 5), angle, (10, 5)),
                (Shape::Cut(10, 10), angle, (10, 10)),
                (Shape::Cut(30, u32::MAX), angle, (30, 20)),
                (Shape::Same, Angle::Quarter, (20, 40)),
                (Shape::Within(20, 20), Angle::ThreeQuarters, (10, 20)),
            ] {
                let action = ImageAction::Change { shape, angle, quality, sharpen };
                let new = change(&old, kind, &action).unwrap().expect("another one");
                assert_eq!(
                    (PictureFormat::of(&new), size(&new, kind)),
                    (Some(kind), expected),
                    "{shape:?}"
                );
            }
            let action =
                ImageAction::Change { shape: Shape::Within(40, 20), angle, quality, sharpen };
            assert!(matches!(change(&old, kind, &action), Ok(None)));
        }
    }

    #[test]
    fn a_quarter_is_counterclockwise() {
        let old = picture(PictureFormat::Png, 3, 2);
        let action = ImageAction::Change {
            shape: Shape::Same,
            angle: Angle::Quarter,
            quality: Some(75),
            sharpen: 0,
        };
        let new = change(&old, PictureFormat::Png, &action).unwrap().unwrap();
        let new = reader(&new, PictureFormat::Png).decode().unwrap().to_rgb8();
        // The upper right corner becomes the upper left one.
        assert_eq!(new.get_pixel(0, 0), &image::Rgb([2, 0, 99]));
    }

    #[test]
    fn a_huge_image_is_refused_before_it_is_decoded() {
        let mut bomb = picture(PictureFormat::Png, 8, 8);
        bomb[16..24].copy_from_slice(&[0, 0, 0xf0, 0, 0, 0, 0xf0, 0]);
        let crc = crc(&bomb[12..29]);
        bomb[29..33].copy_from_slice(&crc.to_be_bytes());
        let shape = Shape::Within(5, 5);
        let action =
            ImageAction::Change { shape, angle: Angle::None, quality: Some(75), sharpen: 0 };
        let why = change(&bomb, PictureFormat::Png, &action).unwrap_err();
        assert_eq!(why.to_string(), "too many pixels: 61440 x 61440");
    }

    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
            })
        })
    }

    proptest! {
        #[test]
        fn none_becomes_larger(width in 1u32..9000, height in 1u32..9000, w: u32, h: u32) {
            let (w, h) = (w.max(1), h.max(1));
            for shape in [Shape::Within(w, h), Shape::Cut(w, h)] {
                let (x, y) = scaled((width, height), shape);
                prop_assert!(x >= 1 && y >= 1 && x <= width && y <= height);
                if matches!(shape, Shape::Within(..)) {
                    prop_assert!(x <= w && y <= h);
                }
            }
        }

        #[test]
        fn what_is_broken_is_said_to_be(kind in 0usize..4, at: proptest::sample::Index, byte: u8, cut: proptest::sample::Index) {
            let kind = KINDS[kind];
            let mut bytes = picture(kind, 9, 7);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.index(bytes.len()) + 1);
            let action = ImageAction::Change { shape: Shape::Within(3, 3), angle: Angle::Half, quality: Some(75), sharpen: 0 };
            let _ = change(&bytes, kind, &action);
        }
    }
}
