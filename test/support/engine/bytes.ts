/** The alphabet of byte-level BPE: a printable character for each byte, as GPT-2 laid it down. */
export function bytesToUnicode(): readonly string[] {
  const characters: string[] = [];
  let spare = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters.push(String.fromCodePoint(printable ? byte : spare++));
  }
  return characters;
}
