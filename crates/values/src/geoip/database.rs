//! A database in MaxMind's format, in memory: looks an address up.

use std::fmt;
use std::io;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use maxminddb::{MaxMindDbError, PathElement, Reader};
use serde::de::{Deserialize, Deserializer, Visitor};

/// A database file, read as a whole: a loop must not block on a page of it.
pub struct Database {
    reader: Reader<Vec<u8>>,
    read: u64,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("type", &self.reader.metadata().database_type).finish()
    }
}

/// A path in the record of an address, such as `country`, `names`, `en`.
#[derive(Debug, Clone, Default)]
pub struct Field(Vec<PathStep>);

#[derive(Debug, Clone)]
enum PathStep {
    Key(String),
    Index(usize),
}

impl Field {
    /// A name is a key of a map, a number is an index in a list.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Field {
        let step = |name: &str| match name.parse() {
            Ok(place) => PathStep::Index(place),
            Err(_) => PathStep::Key(name.to_owned()),
        };
        Field(names.into_iter().map(step).collect())
    }
}

/// Why a database cannot be used.
#[derive(Debug)]
pub enum DatabaseError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is damaged, or no database.
    Invalid(MaxMindDbError),
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatabaseError::Io(error) => weir_log::Cause(error).fmt(f),
            DatabaseError::Invalid(error) => write!(f, "({error})"),
        }
    }
}

impl Database {
    /// Reads a file.
    #[allow(clippy::disallowed_methods, reason = "a file of the configuration, before any request")]
    pub fn open(path: &Path) -> Result<Database, DatabaseError> {
        let bytes = weir_conf::read_file(path).map_err(DatabaseError::Io)?;
        let reader = Reader::from_source(bytes).map_err(DatabaseError::Invalid)?;
        let read = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Database { reader, read })
    }

    /// When the database was built, seconds since 1970.
    pub fn built(&self) -> u64 {
        self.reader.metadata().build_epoch
    }

    /// When the file was read, seconds since 1970.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Appends a value. Fractions get so many digits. False if the address has no such value, or it
    /// is neither text nor number.
    pub fn find(&self, ip: IpAddr, field: &Field, digits: usize, out: &mut Vec<u8>) -> bool {
        let path: Vec<PathElement<'_>> = field
            .0
            .iter()
            .map(|step| match step {
                PathStep::Key(name) => PathElement::Key(name),
                PathStep::Index(place) => PathElement::Index(*place),
            })
            .collect();
        let found = self.reader.lookup(ip).and_then(|found| found.decode_path::<Scalar>(&path));
        // A damaged record counts as missing.
        found.ok().flatten().is_some_and(|value| value.write(digits, out))
    }
}

/// A value that is no map or list.
enum Scalar {
    Text(Vec<u8>),
    Fraction(f64),
}

impl Scalar {
    fn write(&self, digits: usize, out: &mut Vec<u8>) -> bool {
        match self {
            Scalar::Text(text) => out.extend_from_slice(text),
            // Writing to memory cannot fail.
            Scalar::Fraction(value) => drop(write!(out, "{value:.digits$}")),
        }
        true
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        struct Any;

        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.as_bytes().to_vec()))
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Scalar, E> {
                Ok(Scalar::Text(bytes.to_vec()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Text(vec![b'0' + u8::from(value)]))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Text(number.to_string().into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Text(number.to_string().into()))
            }

            fn visit_u128<E>(self, number: u128) -> Result<Scalar, E> {
                Ok(Scalar::Text(number.to_string().into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar::Fraction(number))
            }
        }

        from.deserialize_any(Any)
    }
}
