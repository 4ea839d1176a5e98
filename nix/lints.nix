# SPDX-License-Identifier: AGPL-3.0-or-later
# Tests, clippy, formatting, and the policy on dependencies and licences, each in one derivation over the whole workspace.
{
  pkgs,
  rust,
  root,
  workspace,
  # chaos-profiles with chaos-contract beside it.
  profiles,
}:
let
  inherit (pkgs) lib;
  # Crates whose tests are cargo's alone: the slow ones, and the rules of the repository, which read all of it. Two have checks of their
  # own below.
  slow = lib.filter (line: line != "" && !(lib.hasPrefix "#" line)) (
    lib.splitString "\n" (lib.readFile (root + "/checks/slow-suites"))
  );
  isSlow = folder: lib.elem workspace.crates.${folder}.name (slow ++ [ "chaoscontrol-tidy" "chaoscontrol-e2e" "chaos-contract" "chaoscontrol-policy" ]);
  isNickel = folder: folder == "tools/contract";
  tested = lib.filter (folder: !(isSlow folder)) workspace.members;
  linted = lib.filter (folder: !(isNickel folder)) workspace.members;

  rustFiles = builtins.path {
    path = root;
    name = "chaoscontrol-rust";
    filter =
      path: type:
      let
        name = baseNameOf path;
      in
      type == "directory" || lib.hasSuffix ".rs" name || name == "Cargo.toml" || name == "Cargo.lock" || name == "rustfmt.toml";
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
      tools ? [ ],
      script,
    }:
    rust.layer {
      inherit name tools;
      script = ''
        ${rust.unpack "source" (sources folders) (workspace.closure {
          inherit folders;
          dev = true;
        })}
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
      ${rust.unpack "source" rustFiles workspace.members}
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
    script = ''
      export HOME=$NIX_BUILD_TOP TMPDIR=$NIX_BUILD_TOP
      # What holds pages against code is cargo's: a changed page builds nothing again.
      rm */*/tests/docs.rs
      cargo test --locked $cargoFlags ${rust.packagesOf tested}
    '';
  };
  # Licences, sources, bans and advisories: rules and data are in the repository, and what cargo says needs no network.
  policy =
    let
      folders = [ "checks/policy" ];
    in
    rust.layer {
      name = "policy";
      script = ''
        ${rust.unpack "source" (workspace.sources { inherit folders; dev = true; }) folders}
        ${rust.resume rust.commonDependencies}
        cargo test --release --locked $cargoFlags -p chaoscontrol-policy
        touch $out
      '';
    };
}
// lib.optionalAttrs (workspace.has "tools/contract") {
  # The contracts against their examples; each field of each document wrong in turn, which Nickel and the Rust types must
  # refuse alike; and every profile's projection.
  contracts =
    let
      folders = [ "tools/contract" ];
    in
    rust.layer {
      name = "contracts";
      tools = [ profiles ];
      script = ''
        ${rust.unpack "source"
          (workspace.sources {
            inherit folders;
            dev = true;
            extra = [ "contracts" ];
          })
          (workspace.closure {
            inherit folders;
            dev = true;
          })
        }
        ${rust.resume rust.contractDependencies}
        # It reads a page, and so is cargo's.
        rm tools/contract/tests/registry.rs
        cargo test --release --locked $cargoFlags -p chaos-contract
        chaos-profiles --check contracts/profiles
        touch $out
      '';
    };
}
