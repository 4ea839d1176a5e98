# SPDX-License-Identifier: AGPL-3.0-or-later
# Tests, clippy, formatting, and the rules about dependencies, each in one derivation over the whole workspace.
{
  pkgs,
  platform,
  rust,
  root,
  workspace,
}:
let
  inherit (pkgs) lib;
  # Crates whose tests are cargo's alone (checks/all): they take minutes, or want QEMU, a kernel in the user's cache or built tools.
  slow = [
    "vmm/cpu"
    "vmm/cpu/oracle"
    "vmm/machine"
    "vmm/cluster"
    "checks/e2e"
    "tools/contract"
  ];
  isNickel = folder: folder == "tools/contract";
  tested = lib.filter (folder: !(lib.elem folder slow)) workspace.members;
  linted = lib.filter (folder: !(isNickel folder)) workspace.members;

  # Tests of the repository read all of it as text: pages, scripts, contracts.
  tree = builtins.path {
    path = root;
    name = "chaoscontrol-tree";
    filter = path: _: !(lib.elem (baseNameOf path) [ "target" ]);
  };

  devDependencies = rust.dependencies {
    name = "chaoscontrol-test-dependencies";
    folders = linted;
    dev = true;
    tools = [ pkgs.clippy ];
    build = ''
      cargo build --tests $cargoFlags
      cargo clippy $cargoFlags
    '';
  };
  sources =
    folders:
    workspace.sources {
      inherit folders;
      dev = true;
      extra = [ "contracts" ];
    };
  over =
    {
      name,
      folders,
      src ? sources folders,
      tools ? [ ],
      script,
    }:
    rust.layer {
      inherit name tools;
      script = ''
        ${rust.unpack "source" src (if src == tree then workspace.members else workspace.closure { inherit folders; dev = true; })}
        ${rust.resume devDependencies}
        ${script}
        touch $out
      '';
    };
in
{
  format = rust.layer {
    name = "format";
    tools = [ pkgs.rustfmt ];
    script = ''
      ${rust.unpack "source" tree workspace.members}
      cargo fmt --all --check
      touch $out
    '';
  };
  clippy = over {
    name = "clippy";
    folders = linted;
    tools = [ pkgs.clippy ];
    script = "cargo clippy --locked $cargoFlags ${rust.packagesOf linted} --all-targets -- -D warnings";
  };
  workspace-tests = over {
    name = "workspace-tests";
    folders = tested;
    src = tree;
    tools = platform.testTools;
    script = ''
      export HOME=$NIX_BUILD_TOP TMPDIR=$NIX_BUILD_TOP
      cargo test --locked $cargoFlags ${rust.packagesOf tested}
    '';
  };
}
