// Unpacks Bokeh, and draws the plots.
"use strict";
(async () => {
  const text = (id) => document.getElementById(id).textContent;
  const packed = new Blob([Uint8Array.from(atob(text("bokeh")), (each) => each.charCodeAt(0))]);
  const unpacked = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  for (const item of JSON.parse(text("figures"))) Bokeh.embed.embed_item(item);
})();
