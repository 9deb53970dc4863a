//! A temporary directory for a test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new directory, removed at the end unless the test failed.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes one, with the directory `logs` in it that a prefix has. Workers of the user nobody may
    /// read it, too.
    #[expect(clippy::new_without_default, reason = "it makes something on disk")]
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // Names of one length: answers that show them have one, too.
        let path = std::env::temp_dir().join(format!("weir-test-{}-{n:03}", std::process::id()));
        // Left over from a test that failed in a process of the same number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("logs")).expect("a directory for the test");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its permissions");
        Dir(path)
    }

    /// One that this process has made before it was replaced by another program.
    pub fn of_before(path: &Path) -> Dir {
        Dir(path.to_owned())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it, and the directories on the way.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a directory in the test's");
        }
        fs::write(&path, text).expect("a file in the test's directory");
        path
    }

    /// What is in a file, lossily; nothing when it is not there.
    pub fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the test's files stay in {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
