# SPDX-License-Identifier: AGPL-3.0-or-later
# A shell function that prints a program: the file that it is given, or the only one in a package's bin/. `function` is who says so
# where there is none.
function: ''
  program() {
    if [ ! -d "$1" ]; then echo "$1"; return; fi
    local found=("$1"/bin/*)
    if [ ! -e "''${found[0]}" ]; then
      echo "${function}: $1 has no bin/: name the program itself, or a package with one program" >&2; return 3
    fi
    if [ ''${#found[@]} -ne 1 ]; then
      echo "${function}: $1/bin holds ''${#found[@]} programs: name one of them: ''${found[*]##*/}" >&2; return 3
    fi
    echo "''${found[0]}"
  }
''
