# SPDX-License-Identifier: AGPL-3.0-or-later
# What working on the repository takes, and the formatter of `nix fmt`.
{
  pkgs,
  platform,
  ...
}:
let
  inherit (pkgs) lib;
  formatter = pkgs.writeShellApplication {
    name = "chaoscontrol-format";
    runtimeInputs = [
      pkgs.cargo
      pkgs.rustfmt
    ]
    ++ platform.nixFormatters;
    text = ''
      cargo fmt --all
      ${lib.concatMapStrings (f: ''
        git ls-files -z -- '*.nix' | xargs -0 ${lib.getExe f}
      '') platform.nixFormatters}
    '';
  };
in
pkgs.mkShell {
  name = "chaoscontrol";
  packages = [
    pkgs.cargo
    pkgs.rustc
    pkgs.clippy
    pkgs.rustfmt
    pkgs.bc
    pkgs.bison
    pkgs.cpio
    pkgs.flex
    pkgs.jq
    pkgs.zstd
  ]
  ++ platform.kernelLibraries
  ++ platform.staticLibraries
  ++ platform.shellTools;
}
// {
  inherit formatter;
}
