# frozen_string_literal: true

require_relative "../../rakelib/support/services"

RSpec.describe Tasks::Services do
  it "says what is missing where Debian's packages can't be had" do
    allow(Tasks::Tools).to receive(:find).with("apt-get").and_return(nil)
    expect { described_class.run { raise "nothing runs" } }.to raise_error(described_class::Missing, /need apt-get/)
  end

  it "makes the stage of the suite say so, and count as skipped" do
    Dir.mktmpdir do |empty|
      script = "load Gem.bin_path('rake', 'rake')"
      output, status = Open3.capture2e({ "PATH" => empty }, RbConfig.ruby, "-e", script, "--", "rails:spec",
                                       chdir: ProjectFiles::ROOT)
      expect(status).to be_success, output
      expect(output).to end_with(<<~TEXT)
        The servers and Debian's Rails can't be had here: Debian's packages need apt-get, which is not here
        1 example, 0 failures, 1 pending
      TEXT
    end
  end
end
