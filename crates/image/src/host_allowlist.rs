//! What of the host the `host` image shows: data, to be reviewed as such. Everything not named here stays out.

/// Directories of the root that hold programs: a symbolic link into /usr, or (older systems) a real directory.
pub const SYSTEM_DIRS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What is copied from /etc: needed by common programs, world-readable, without secrets on any sane host.
///
/// Left out on purpose: profile, profile.d, environment, bash.bashrc (they export tokens and proxy passwords; plain
/// ones are made instead), gitconfig, npmrc, pip.conf, maven (credentials), ssh, ssl/private, ld.so.preload (would be
/// loaded into everything), machine-id and hostname (identify the host), apt, systemd, cron (useless inside).
pub const ETC: [&str; 37] = [
    "ImageMagick-6",
    "ImageMagick-7",
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "ethertypes",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "protocols",
    "rpc",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Entries of /etc whose names carry a version: `python3.11`, `java-17-openjdk`. Looked for only when the layer is
/// built; installing one changes `alternatives` or `ld.so.cache` as well, which the key sees.
pub const ETC_PREFIXES: [&str; 3] = ["python3", "java-", "jvm-"];

/// Files with such endings are key material, whatever their mode says.
pub(crate) const SECRET_SUFFIXES: [&str; 7] = [".key", ".jks", ".p12", ".pfx", ".keystore", ".password", ".access"];
