//! Uploaded files on their way into an image.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use sloplet_client::Agent;
use sloplet_wire::Target;
use tokio::sync::mpsc;

/// Bytes of an archive once it is not compressed any more; the sandbox's disk bounds what it becomes there.
const MAX_UNPACKED: u64 = 16 << 30;

/// Bytes read at a time.
const PIECE: usize = 128 * 1024;

/// Run as root, with the folder where the archive was unpacked, the pattern, the target, the owner and the mode.
///
/// As in a Dockerfile: what is in a folder is copied, not the folder; one file takes the target's name unless that is a
/// folder or ends in a slash; a pattern makes the target a folder.
pub(super) const SCRIPT: &str = r#"
set -e
folder=$1 pattern=$2 target=$3 owner=$4 mode=$5
trap 'cd /; rm -rf "$folder"' EXIT
cd "$folder"
[ -z "$owner" ] || chown -R -h "$owner" .
if [ -n "$mode" ]; then
    chmod -R "$mode" .
    find . -type d -exec chmod a+X {} +
fi
make() {
    if [ ! -d "$1" ]; then
        mkdir -p "$1"
        [ -z "$owner" ] || chown "$owner" "$1"
    fi
}
IFS=
set -- $pattern
if [ $# -eq 1 ] && [ ! -e "$1" ] && [ ! -L "$1" ]; then
    set -- *
    if [ $# -eq 1 ] && [ ! -e "$1" ] && [ ! -L "$1" ]; then
        echo "no files match $pattern" >&2
        exit 1
    fi
fi
into=
case $target in */|*/.) into=yes ;; esac
[ $# -eq 1 ] && [ "$1" = "$pattern" ] || into=yes
[ ! -d "$target" ] || into=yes
for one do
    if [ -d "$one" ] && [ ! -L "$one" ]; then
        make "$target"
        cp -a "$one/." "$target/"
    elif [ -n "$into" ]; then
        make "$target"
        cp -a "$one" "$target/"
    else
        make "$(dirname "$target")"
        cp -a "$one" "$target"
    fi
done
"#;

/// Unpacks an uploaded archive, compressed or not, below a folder inside.
pub(super) async fn unpack(agent: &Agent, archive: &Path, folder: &str, user: &str) -> Result<(), String> {
    let file = File::open(archive).map_err(|_| "its files were not uploaded".to_owned())?;
    let (sender, mut receiver) = mpsc::channel(4);
    let reading = tokio::task::spawn_blocking(move || read(file, &sender));
    let target = Target { path: folder.as_bytes().to_vec().into(), user: Some(user.to_owned()), privileged: false };
    let mut upload = agent.unpack(target).await.map_err(|error| error.to_string())?;
    while let Some(piece) = receiver.recv().await {
        upload.write(piece).await.map_err(|error| format!("cannot unpack its files: {error}"))?;
    }
    match reading.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(format!("its files are not a tar archive: {error}")),
        Err(error) => return Err(error.to_string()),
    }
    upload.finish().await.map_err(|error| format!("cannot unpack its files: {error}"))
}

/// Sends what is in the file until nobody listens.
fn read(mut file: File, sender: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let mut magic = [0; 2];
    let read = file.read(&mut magic)?;
    let start = io::Cursor::new(magic).take(read as u64).chain(file);
    let mut source: Box<dyn Read> = match (read, magic) {
        (2, [0x1f, 0x8b]) => Box::new(MultiGzDecoder::new(start)),
        _ => Box::new(start),
    };
    let mut left = MAX_UNPACKED;
    loop {
        let mut piece = vec![0; PIECE];
        let length = source.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        piece.truncate(length);
        left = left.checked_sub(length as u64).ok_or_else(|| io::Error::other("it is too large"))?;
        if sender.blocking_send(piece.into()).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn archives_are_read_compressed_or_not() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, vec![7; 300_000]).unwrap();
        let packed = folder.path().join("packed");
        let mut encoder = flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
        encoder.write_all(&vec![7; 300_000]).unwrap();
        encoder.finish().unwrap();
        for path in [plain, packed] {
            let (sender, mut receiver) = mpsc::channel(100);
            read(File::open(path).unwrap(), &sender).unwrap();
            drop(sender);
            let mut all = Vec::new();
            while let Some(piece) = receiver.blocking_recv() {
                all.extend_from_slice(&piece);
            }
            assert!(all.len() == 300_000 && all.iter().all(|byte| *byte == 7));
        }
    }

    /// What is in a folder after `COPY <pattern> <target>`, of `dir/{a,b c}`, `dir/sub/d`, `one` and a dangling link.
    fn copied(pattern: &str, target: &str, mode: &str) -> (bool, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        fs::create_dir_all(from.join("dir/sub")).unwrap();
        fs::create_dir_all(to.join("there")).unwrap();
        for name in ["dir/a", "dir/b c", "dir/sub/d", "one"] {
            fs::write(from.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("nowhere", from.join("dir/link")).unwrap();
        let target = format!("{}/{target}", to.display());
        let folder = from.display().to_string();
        let done =
            Command::new("sh").args(["-c", SCRIPT, "copy", &folder, pattern, &target, "", mode]).status().unwrap();
        let found = Command::new("find").arg(&to).args(["!", "-type", "d", "-printf", "%P\n"]).output().unwrap();
        let mut names: Vec<String> = String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect();
        names.sort();
        assert!(!from.exists(), "what was unpacked is removed");
        (done.success(), names)
    }

    #[test]
    fn files_go_where_a_dockerfile_would_put_them() {
        assert_eq!(copied("one", "new", "").1, ["new"]);
        assert_eq!(copied("one", "new/", "").1, ["new/one"]);
        assert_eq!(copied("one", "there", "").1, ["there/one"]);
        assert_eq!(copied("one", "deep/er/new", "0600").1, ["deep/er/new"]);
        assert_eq!(copied("dir", "new", "").1, ["new/a", "new/b c", "new/link", "new/sub/d"]);
        assert_eq!(copied("dir/*", "new", "").1, ["new/a", "new/b c", "new/d", "new/link"]);
        assert_eq!(copied("dir/b c", "x y", "").1, ["x y"]);
        assert_eq!(copied("dir/link", "link", "").1, ["link"]);
        // A pattern that a shell does not know: the client chose the files already.
        assert_eq!(copied("**/nothing-like-it", "new", "").1, ["new/a", "new/b c", "new/link", "new/one", "new/sub/d"]);
    }

    #[test]
    fn nothing_to_copy_is_a_failure() {
        let root = tempfile::tempdir().unwrap();
        let from = root.path().join("from");
        fs::create_dir_all(&from).unwrap();
        let folder = from.display().to_string();
        let done = Command::new("sh").args(["-c", SCRIPT, "copy", &folder, "x", "/nowhere", "", ""]).status().unwrap();
        assert!(!done.success());
    }
}
