"use strict";

// A file of its own: the content security policy allows no script in the page.
const page = document.getElementById("swagger-ui");

// Swagger UI has a dark side of its own; it follows the page's theme.
const root = document.documentElement;
const themed = () => root.classList.toggle("dark-mode", root.dataset.bsTheme === "dark");
themed();
new MutationObserver(themed).observe(root, { attributeFilter: ["data-bs-theme"] });

// Only operations near the window are drawn, so that a browser's own search misses the others. The
// box of Swagger UI asks for tags alone; this one finds paths, methods and summaries too.
const FIND = "Find operations by path, method or words";
const found = (tagged, phrase) => {
  const wanted = phrase.toLowerCase().split(" ").filter(Boolean);
  const has = (text) => wanted.every((word) => text.toLowerCase().includes(word));
  const told = (tag, one) =>
  [tag, one.get("method"), one.get("path"), one.getIn(["operation", "summary"])].join(" ");
  return tagged
    .map((group, tag) => group.update("operations", (all) => all.filter((one) => has(told(tag, one)))))
    .filter((group) => group.get("operations").size);
};

// A link inside a button cannot be told by those who listen to a page; the button does the same.
const plain = () => {
  for (const link of page.querySelectorAll("button a[href]")) link.removeAttribute("href");
  const box = page.querySelector(".operation-filter-input");
  if (box && box.placeholder !== FIND) {
    box.placeholder = FIND;
    box.setAttribute("aria-label", FIND);
  }
};
new MutationObserver(plain).observe(page, { childList: true, subtree: true });

SwaggerUIBundle({
  domNode: page,
  url: page.dataset.schema,
  deepLinking: true,
  filter: true,
  plugins: [() => ({ fn: { opsFilter: found } })],
  validatorUrl: null, // nothing is sent to other servers
  requestInterceptor: (request) => {
    if (request.method && request.method !== "GET") {
      request.headers["X-CSRFToken"] = page.dataset.csrf;
    }
    return request;
  },
});
