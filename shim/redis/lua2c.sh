#!/bin/sh
# lua2c.sh FILE...: prints a C header with each Lua script as a string and its SHA1, which is its name for EVALSHA.
# Comment lines and indentation are left out; a line "--#include FILE" is replaced by that file.
set -eu
flatten() {
    while IFS= read -r line; do
        case $line in
        *'--#include '*) flatten "$(dirname "$1")/${line##*--#include }" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <"$1"
}
echo "/* Made by lua2c.sh; edit the .lua files instead. */"
for file; do
    name=$(basename "$file" .lua)
    text=$(flatten "$file" | sed -e 's/^[[:space:]]*//' -e '/^--/d' -e '/^$/d')
    sha=$(printf '%s' "$text" | sha1sum | cut -d' ' -f1)
    printf 'const struct nf_script nf_script_%s = {\n    "%s",\n' "$name" "$sha"
    printf '%s' "$text" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e '$!s/.*/    "&\\n"/' -e '$s/.*/    "&"/'
    printf '\n};\n'
done
