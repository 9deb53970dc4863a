//! Parts of videos.

use weir_testkit::{Dir, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// An MP4 of one track with four samples of a second and a byte each, one in a chunk: `abcd`.
fn film() -> Vec<u8> {
    film_with(&[])
}

/// The same; these samples are whole pictures, or all of them.
fn film_with(whole: &[u32]) -> Vec<u8> {
    let atom = |name: &[u8], body: &[u8]| {
        [&(body.len() as u32 + 8).to_be_bytes()[..], name, body].concat()
    };
    let list = |n: &[u32]| n.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    let moov = |data: u32| {
        let stbl = [
            atom(b"stts", &list(&[0, 1, 4, 1000])),
            atom(b"stsc", &list(&[0, 1, 1, 1, 1])),
            atom(b"stsz", &list(&[0, 1, 4])),
            atom(b"stco", &list(&[0, 4, data, data + 1, data + 2, data + 3])),
        ];
        let stss = match whole {
            [] => Vec::new(),
            _ => atom(b"stss", &list(&[&[0, whole.len() as u32], whole].concat())),
        };
        let stbl = [stbl.concat(), stss];
        let minf = atom(b"minf", &atom(b"stbl", &stbl.concat()));
        let mdhd = atom(b"mdhd", &list(&[0, 0, 0, 1000, 4000, 0]));
        atom(b"moov", &atom(b"trak", &atom(b"mdia", &[mdhd, minf].concat())))
    };
    let ftyp = atom(b"ftyp", b"isom\0\0\0\0");
    let before = ftyp.len() + moov(0).len() + 8;
    [ftyp, moov(before as u32), atom(b"mdat", b"abcd")].concat()
}

fn start() -> Server {
    let dir = Dir::new();
    dir.write("root/x.mp4", film());
    dir.write("root/key.mp4", film_with(&[1, 3]));
    dir.write("root/broken.mp4", "\0\0\0\x08ftyp\0\0\x10\0moov");
    dir.write("root/x.flv", "0123456789");
    dir.write("root/directory/index.html", "index");
    Server::start_in(
        dir,
        WEIR,
        "events { }
         http {
             access_log off;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%/root;
                 location / { mp4; }
                 location ~ flv$ { flv; }
                 location /whole/ { alias %%DIR%%/root/; mp4; mp4_start_key_frame on; }
             }
         }",
    )
}

#[test]
fn a_span_of_a_film() {
    let server = start();
    assert_eq!(server.get("/x.mp4").bytes, film());
    assert_eq!(server.get("/x.mp4?start=0").bytes, film());
    let part = server.get("/x.mp4?start=1&end=3");
    assert_eq!(part.status, 200);
    assert!(part.bytes.ends_with(b"mdatbc"), "{:?}", part.body());
    // The chunks' offsets in the part lead to its own bytes.
    let stco = part.bytes.windows(4).position(|name| name == b"stco").unwrap() + 4;
    let field = |at: usize| {
        let bytes: [u8; 4] = part.bytes[stco + at..stco + at + 4].try_into().unwrap();
        u32::from_be_bytes(bytes) as usize
    };
    assert_eq!(field(4), 2);
    assert_eq!([part.bytes[field(8)], part.bytes[field(12)]], *b"bc");
}

#[test]
fn a_span_begins_with_a_whole_picture_where_that_is_said() {
    let server = start();
    for (path, data) in [("/key.mp4", &b"mdatb"[..]), ("/whole/key.mp4", b"mdatab")] {
        let part = server.get(&format!("{path}?start=1&end=2"));
        assert!(part.bytes.ends_with(data), "{path}: {:?}", part.body());
    }
}

#[test]
fn what_is_no_film() {
    let server = start();
    assert_eq!(server.get("/broken.mp4?start=1").status, 500);
    server.wait_log("root/broken.mp4\" mp4 atom too large:4096, client: ", 1);
    assert_eq!(server.get("/broken.mp4").status, 200);
    assert_eq!(server.get("/x.mp4?start=9").status, 500);
    assert_eq!(server.get("/none.mp4").status, 404);
    assert_eq!(server.get("/directory/").body(), "index");
}

#[test]
fn flash_video_from_a_place_on() {
    let server = start();
    assert_eq!(server.get("/x.flv?start=7").bytes, b"FLV\x01\x05\0\0\0\x09\0\0\0\x00789");
    assert_eq!(server.get("/x.flv?start=10").body(), "0123456789");
    assert_eq!(server.get("/x.flv?start=x").body(), "0123456789");
    // A part has a tag of its own, as long as it is.
    let tag = |path| server.get(path).header("ETag").unwrap_or_default().to_owned();
    assert!(tag("/x.flv").ends_with("-a\""));
    assert!(tag("/x.flv?start=7").ends_with("-10\""));
}
