# frozen_string_literal: true

# A link between our own pages must lead to a file, and to a heading where it names one.
RSpec.describe "links between pages" do
  let(:root) { File.expand_path("../..", __dir__) }
  let(:pages) { Dir[File.join(root, "{*.md,docs/**/*.md,bench/**/*.md,examples/**/*.md}")].sort }

  # The anchor that GitHub gives a heading.
  def anchor(heading)
    heading.downcase.gsub(/[^\p{L}\p{N}\- _]/, "").tr(" ", "-")
  end

  def headings(page)
    text = File.read(page).gsub(/^```.*?^```/m, "")
    text.scan(/^#+ +(.+?) *$/).flatten.map { |heading| anchor(heading) }
  end

  def broken(page, text = File.read(page))
    links = text.gsub(/^```.*?^```/m, "").scan(/\]\(([^)\s]+)\)/).flatten.reject { |link| link.match?(/\A[a-z]+:/) }
    links.reject do |link|
      path, heading = link.split("#", 2)
      target = path.empty? ? page : File.expand_path(path, File.dirname(page))
      File.exist?(target) && (heading.nil? || headings(target).include?(heading))
    end
  end

  it "finds what leads nowhere" do
    readme = File.join(root, "README.md")
    text = "[a](docs/nowhere.md) [b](#nothing) [c](docs/guides/gpu.md#nothing) [d](LICENSE) [e](https://example.org)"
    expect(broken(readme, text)).to eq(["docs/nowhere.md", "#nothing", "docs/guides/gpu.md#nothing"])
  end

  it "lead to files and headings" do
    expect(pages.size).to be > 20
    expect(pages.to_h { |page| [page, broken(page)] }.reject { |_, links| links.empty? }).to be_empty
  end

  it "keeps pages in guides, reference and internals" do
    expect(Dir.children(File.join(root, "docs")).sort).to eq(%w[guides internals reference])
  end
end
