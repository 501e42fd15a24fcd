//! What can be typed about images.

use std::path::PathBuf;

use clap::Subcommand;

/// `sloplet image`
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Import a directory, tarball, OCI layout or docker-save archive.
    #[command(after_help = "Example:\n  sloplet image import ./rootfs.tar --name mine")]
    Import {
        /// What to import.
        source: PathBuf,
        /// Its name in the store [default: the source's own]
        #[arg(long)]
        name: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pull an image from a registry.
    #[command(after_help = "Example:\n  sloplet image pull registry.example.com/tools/python:3.13")]
    Pull {
        /// Its reference.
        reference: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Build an image from the distribution's packages: 'base' (a small Debian with bash, python, git, curl, and a user with
    /// sudo) or 'code-interpreter' (that with Jupyter kernels, matplotlib, pandas and node).
    Build {
        /// Which.
        #[arg(default_value = sloplet_image::BASE_NAME)]
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List images.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove images.
    Rm {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}
